# SPDX-License-Identifier: Apache-2.0

"""A stand-in for the kubelet: registration, prepare, pods by CRI, unprepare.

It does what the real one does, as its source says: it registers what appears
below plugins_registry, also two processes of one driver, and calls the newest
that answers; it writes a claim into its checkpoint before it asks to
prepare it; one call has all claims of a Pod, with a deadline of 45 s; an error
of one claim, a UID that it did not ask for and one that is missing fail the
Pod; "prepared" is in memory only; the ids for the runtime are those of the
checkpoint; it unprepares after the containers have ended.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import tempfile
from typing import Any
import uuid

import grpc
from grpc_tools import protoc
import stand_in_api

PROTO = pathlib.Path(__file__).parent / 'proto'
CALL_TIMEOUT = 45
DRIVER = 'os-acc.openstack.org'

_generated = tempfile.TemporaryDirectory(prefix='os-acc-dra-')
if protoc.main(
    [
        '',
        f'-I{PROTO}',
        f'--python_out={_generated.name}',
        f'--grpc_python_out={_generated.name}',
        *(str(path) for path in PROTO.glob('*.proto')),
    ]
):
    raise RuntimeError('the .proto files cannot be compiled')
sys.path.insert(0, _generated.name)

import cri_pb2 as cri  # noqa: E402
import cri_pb2_grpc  # noqa: E402
import dra_v1_pb2 as dra  # noqa: E402
import dra_v1_pb2_grpc  # noqa: E402
import dra_v1beta1_pb2 as dra_beta  # noqa: E402
import dra_v1beta1_pb2_grpc  # noqa: E402
import health_v1alpha1_pb2 as health  # noqa: E402
import health_v1alpha1_pb2_grpc  # noqa: E402
import registration_pb2 as registration  # noqa: E402
import registration_pb2_grpc  # noqa: E402

sys.path.remove(_generated.name)

#: The services that a version of the kubelet knows.
VERSIONS = {
    'v1.DRAPlugin': (dra, dra_v1_pb2_grpc),
    'v1beta1.DRAPlugin': (dra_beta, dra_v1beta1_pb2_grpc),
}


class PrepareFailed(Exception):
    """The Pod stays in ContainerCreating, and is tried again."""


@dataclasses.dataclass(frozen=True)
class Plugin:
    """A process of a driver that is registered.

    :ivar path: of its socket below plugins_registry
    :ivar messages: the messages of its version
    """

    path: pathlib.Path
    info: Any
    messages: Any
    stub: Any


class Kubelet:
    """The kubelet of a node.

    :param directory: stands for /var/lib/kubelet
    :param server: the API server
    :param known: the services that it knows
    """

    def __init__(
        self,
        directory: pathlib.Path,
        server: stand_in_api.APIServer,
        known: tuple[str, ...] = tuple(VERSIONS),
        cri_socket: str = '',
    ) -> None:
        self.directory, self._server, self._known = directory, server, known
        self.registry = directory / 'plugins_registry'
        self.registry.mkdir(parents=True, exist_ok=True)
        self.checkpoint = directory / 'dra_manager_state'
        self.claims: dict[str, Any] = {}
        if self.checkpoint.exists():
            self.claims = json.loads(self.checkpoint.read_text())
        self.prepared: set[str] = set()
        self._plugins: list[Plugin] = []
        if cri_socket:
            self.runtime = cri_pb2_grpc.RuntimeServiceStub(
                grpc.insecure_channel(f'unix:{cri_socket}')
            )

    def register(self) -> None:
        """Register the sockets that are there. One at least must answer."""
        paths = (
            each for each in self.registry.rglob('*.sock') if each.is_socket()
        )
        found = (
            self._registered(each)
            for each in sorted(paths, key=lambda path: path.stat().st_ctime_ns)
        )
        self._plugins = [each for each in found if each is not None]
        assert self._plugins

    def _registered(self, path: pathlib.Path) -> Plugin | None:
        """Register a process; None: it does not answer, for it is dead."""
        with grpc.insecure_channel(f'unix:{path}') as channel:
            stub = registration_pb2_grpc.RegistrationStub(channel)
            try:
                info = stub.GetInfo(registration.InfoRequest(), timeout=5)
            except grpc.RpcError:
                return None
            assert info.type == 'DRAPlugin'
            usable = [v for v in info.supported_versions if v in self._known]
            stub.NotifyRegistrationStatus(
                registration.RegistrationStatus(
                    plugin_registered=bool(usable),
                    error='' if usable else 'invalid supported versions',
                ),
                timeout=5,
            )
        assert usable
        compiled, services = VERSIONS[usable[0]]
        channel = grpc.insecure_channel(
            f'unix:{info.endpoint}',
            # A connection of its own, as after a new registration: without
            # the pauses of one that could not be made before.
            [('grpc.use_local_subchannel_pool', 1)],
        )
        return Plugin(path, info, compiled, services.DRAPluginStub(channel))

    @property
    def info(self) -> Any:
        """What the newest process has said of itself."""
        return self._plugins[-1].info

    def watch_health(self) -> Any:
        """Open the stream that says which devices are healthy."""
        assert 'v1alpha1.DRAResourceHealth' in self.info.supported_versions
        channel = grpc.insecure_channel(
            f'unix:{self.info.endpoint}',
            [('grpc.use_local_subchannel_pool', 1)],
        )
        return health_v1alpha1_pb2_grpc.DRAResourceHealthStub(
            channel
        ).NodeWatchResources(health.NodeWatchResourcesRequest(), timeout=60)

    def call(
        self,
        method: str,
        claims: list[Any],
        timeout: float = CALL_TIMEOUT,
        by: pathlib.Path | None = None,
    ) -> dict[str, Any]:
        """Call the driver for claims of the API server.

        :param by: the registration socket of a process; None: the newest
        """
        plugin = next(
            each for each in reversed(self._plugins) if by in (None, each.path)
        )
        asked = [
            plugin.messages.Claim(
                namespace=each['metadata']['namespace'],
                name=each['metadata']['name'],
                uid=each['metadata']['uid'],
            )
            for each in claims
        ]
        request = getattr(plugin.messages, f'{method}Request')(claims=asked)
        answer = getattr(plugin.stub, method)(request, timeout=timeout)
        assert set(answer.claims) == {each.uid for each in asked}
        return dict(answer.claims)

    def prepare(
        self,
        *claims: Any,
        timeout: float = CALL_TIMEOUT,
        by: pathlib.Path | None = None,
    ) -> list[str]:
        """Prepare the claims of a Pod.

        :param by: as for call()
        :returns: the ids for the runtime
        """
        for each in claims:
            uid = each['metadata']['uid']
            self.claims.setdefault(uid, {'claim': each, 'ids': []})
        self._save()
        new = [c for c in claims if c['metadata']['uid'] not in self.prepared]
        failed = []
        answers = (
            self.call('NodePrepareResources', new, timeout, by) if new else {}
        )
        for uid, answer in answers.items():
            if answer.error:
                failed.append(answer.error)
                continue
            self.claims[uid]['ids'] = [
                cdi for each in answer.devices for cdi in each.cdi_device_ids
            ]
            self._save()
        if failed:
            raise PrepareFailed('; '.join(failed))
        self.prepared.update(answers)
        return [
            cdi
            for each in claims
            for cdi in self.claims[each['metadata']['uid']]['ids']
        ]

    def unprepare(
        self,
        *claims: Any,
        timeout: float = CALL_TIMEOUT,
        by: pathlib.Path | None = None,
    ) -> None:
        answers = self.call(
            'NodeUnprepareResources', list(claims), timeout, by
        )
        failed = [each.error for each in answers.values() if each.error]
        for uid, answer in answers.items():
            if not answer.error:
                self.prepared.discard(uid)
                self.claims.pop(uid, None)
        self._save()
        if failed:
            raise PrepareFailed('; '.join(failed))

    def _save(self) -> None:
        new = self.checkpoint.with_suffix('.new')
        new.write_text(json.dumps(self.claims))
        new.replace(self.checkpoint)

    # --- the container runtime

    def start_pod(
        self, name: str, ids: list[str], privileged: bool = False
    ) -> tuple[str, str]:
        """Start a Pod with one container, without CAP_MKNOD.

        :param privileged: with all capabilities and devices, as kube-proxy
        """
        host = cri.NamespaceOption(network=cri.NODE)
        sandbox = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(
                name=name, uid=str(uuid.uuid4()), namespace='default'
            ),
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent='/os-acc-dra',
                security_context=cri.LinuxSandboxSecurityContext(
                    namespace_options=host, privileged=privileged
                ),
            ),
        )
        dropped = cri.Capability(drop_capabilities=['MKNOD'])
        pod = self.runtime.RunPodSandbox(
            cri.RunPodSandboxRequest(config=sandbox), timeout=120
        ).pod_sandbox_id
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name='main'),
            image=cri.ImageSpec(image='test.invalid/busybox:1'),
            command=['/bin/sleep', '100000'],
            CDI_devices=[cri.CDIDevice(name=each) for each in ids],
            linux=cri.LinuxContainerConfig(
                security_context=cri.LinuxContainerSecurityContext(
                    namespace_options=host,
                    privileged=privileged,
                    capabilities=None if privileged else dropped,
                )
            ),
        )
        try:
            container = self.runtime.CreateContainer(
                cri.CreateContainerRequest(
                    pod_sandbox_id=pod, config=config, sandbox_config=sandbox
                ),
                timeout=120,
            ).container_id
            self.runtime.StartContainer(
                cri.StartContainerRequest(container_id=container), timeout=120
            )
        except grpc.RpcError:
            self.stop_pod(pod)
            raise
        return pod, container

    def execute(self, container: str, *command: str) -> tuple[int, str]:
        done = self.runtime.ExecSync(
            cri.ExecSyncRequest(
                container_id=container, cmd=command, timeout=20
            ),
            timeout=30,
        )
        return done.exit_code, (done.stdout + done.stderr).decode().strip()

    def stop_pod(self, pod: str, container: str | None = None) -> None:
        if container:
            self.runtime.StopContainer(
                cri.StopContainerRequest(container_id=container, timeout=1),
                timeout=30,
            )
            self.runtime.RemoveContainer(
                cri.RemoveContainerRequest(container_id=container), timeout=30
            )
        self.runtime.StopPodSandbox(
            cri.StopPodSandboxRequest(pod_sandbox_id=pod), timeout=60
        )
        self.runtime.RemovePodSandbox(
            cri.RemovePodSandboxRequest(pod_sandbox_id=pod), timeout=60
        )
