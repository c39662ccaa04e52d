# SPDX-License-Identifier: Apache-2.0

"""The gRPC services that the kubelet calls, and their sockets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
import contextlib
import functools
import logging
import math
import os
import time
from typing import Any

import grpc

from os_acc_dra import claims
from os_acc_dra import errors
from os_acc_dra import health as health_module
from os_acc_dra import messages
from os_acc_dra import node as node_module
from os_acc_dra import process as process_module
from os_acc_dra import workers as workers_module

LOG = logging.getLogger(__name__)

#: The services, as the kubelet knows them; it takes the first that it knows.
VERSIONS = (
    'v1.DRAPlugin',
    'v1beta1.DRAPlugin',
    'v1alpha1.DRAResourceHealth',
)
_PACKAGES = ('v1', 'v1beta1')
#: How much of the time of a call is left, at least, when it is answered.
_MARGIN = 0.1
_THREADS = 256


class Calls:
    """Answers NodePrepareResources and NodeUnprepareResources.

    :param node: does the work
    :param workers: of all claims
    :ivar timeout: seconds after which a call is answered
    """

    def __init__(
        self,
        node: node_module.Node,
        workers: workers_module.Workers,
        timeout: float,
    ) -> None:
        self._node, self._workers, self.timeout = node, workers, timeout

    def prepare(self, request: Any, context: Any) -> Any:
        """NodePrepareResources."""
        answer = messages.DRA['NodePrepareResourcesResponse']()
        for uid, result, error in self._all(
            request.claims, context, 'prepare', self._node.prepare
        ):
            if error:
                answer.claims[uid].error = error
                continue
            answer.claims[uid].devices.extend(
                messages.DRA['Device'](
                    request_names=[each.request],
                    pool_name=each.pool,
                    device_name=each.device,
                    cdi_device_ids=each.cdi_ids,
                )
                for each in result
            )
        return answer

    def unprepare(self, request: Any, context: Any) -> Any:
        """NodeUnprepareResources."""
        answer = messages.DRA['NodeUnprepareResourcesResponse']()
        for uid, _, error in self._all(
            request.claims, context, 'unprepare', self._node.unprepare
        ):
            answer.claims[uid].error = error
        return answer

    def prepare_early(self, wanted: claims.Reference) -> None:
        """Prepare a claim before the kubelet asks, and wait for the end.

        :raises: as node.Node.prepare
        """
        self._early(wanted, 'prepare', self._node.prepare)

    def unprepare_early(self, wanted: claims.Reference) -> None:
        """Unprepare a claim that the kubelet never asked for.

        :raises: as node.Node.unprepare
        """
        self._early(wanted, 'unprepare', self._node.unprepare)

    def _early(
        self,
        wanted: claims.Reference,
        kind: str,
        work: Callable[[claims.Reference, workers_module.Worker], Any],
    ) -> None:
        def alive() -> bool:
            return True

        worker = self._workers.start(
            wanted.uid, kind, functools.partial(work, wanted), alive
        )
        self._workers.answer(worker, alive, math.inf)

    def _all(
        self,
        asked: Any,
        context: Any,
        kind: str,
        work: Callable[[claims.Reference, workers_module.Worker], Any],
    ) -> list[tuple[str, Any, str]]:
        """Work for all claims of a call at once, each with its own answer.

        :returns: for each claim its UID, its result, and its error or ''
        """
        end = time.monotonic() + self._seconds(context)
        alive = context.is_active
        started: list[tuple[str, workers_module.Worker]] = []
        found: list[tuple[str, Any, str]] = []
        for each in asked:
            wanted = claims.Reference(each.namespace, each.name, each.uid)
            to_do = functools.partial(work, wanted)
            try:
                worker = self._workers.start(each.uid, kind, to_do, alive)
            except RuntimeError as err:
                found.append((each.uid, None, errors.text_of(err)))
            else:
                started.append((each.uid, worker))
        for uid, worker in started:
            try:
                result = self._workers.answer(worker, alive, end)
            except Exception as err:
                found.append((uid, None, errors.text_of(err)))
            else:
                found.append((uid, result, ''))
        return found

    def _seconds(self, context: Any) -> float:
        """How long this call may take."""
        left: float | None = context.time_remaining()
        if left is None:
            return self.timeout
        return min(self.timeout, left * (1 - _MARGIN))


class Service:
    """The services of this driver on the sockets of its process.

    :param calls: answers the calls for claims
    :param driver: the name of this driver
    :param process: has the sockets
    :param health: tells the kubelet which devices are healthy
    """

    def __init__(
        self,
        calls: Calls,
        driver: str,
        process: process_module.Process,
        health: health_module.Health,
    ) -> None:
        self._calls, self._driver, self._health = calls, driver, health
        self._process = process
        self._servers: list[grpc.Server] = []

    def start(self) -> None:
        """Serve, and let the kubelet find it: the registration comes last.

        :raises ConfigurationError: if the sockets cannot be made, or another
            process serves this driver
        """
        self._process.reserve()
        methods = {
            'NodePrepareResources': self._calls.prepare,
            'NodeUnprepareResources': self._calls.unprepare,
        }
        self._serve(
            self._process.endpoint,
            [
                _handler(
                    f'k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin',
                    messages.DRA,
                    {
                        name: (method, f'{name}Request', f'{name}Response')
                        for name, method in methods.items()
                    },
                )
                for version in _PACKAGES
            ]
            + [_stream(self._health)],
        )
        self._serve(
            self._process.registration,
            [
                _handler(
                    'pluginregistration.Registration',
                    messages.REGISTRATION,
                    {
                        'GetInfo': (self._info, 'InfoRequest', 'PluginInfo'),
                        'NotifyRegistrationStatus': (
                            self._notified,
                            'RegistrationStatus',
                            'RegistrationStatusResponse',
                        ),
                    },
                )
            ],
        )

    def _serve(self, path: str, handlers: list[Any]) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a process that was killed
        server = grpc.server(futures.ThreadPoolExecutor(_THREADS))
        server.add_generic_rpc_handlers(handlers)
        try:
            server.add_insecure_port(f'unix:{path}')
            server.start()
            os.chmod(path, 0o600)
        except (OSError, RuntimeError) as err:
            raise errors.ConfigurationError(f'{path}: {err}') from err
        self._servers.append(server)

    def stop(self, grace: float) -> None:
        """Stop: first the registration, so that the kubelet sends no more.

        :param grace: seconds for the calls that go on
        """
        self._process.unregister()
        self._health.stop()
        for server in reversed(self._servers):
            server.stop(grace).wait()
        self._servers.clear()

    def _info(self, request: Any, context: Any) -> Any:
        return messages.REGISTRATION['PluginInfo'](
            type='DRAPlugin',
            name=self._driver,
            endpoint=self._process.endpoint,
            supported_versions=VERSIONS,
        )

    @staticmethod
    def _notified(request: Any, context: Any) -> Any:
        if request.plugin_registered:
            LOG.info('The kubelet has registered this driver')
        else:
            LOG.error('The kubelet refuses this driver: %s', request.error)
        return messages.REGISTRATION['RegistrationStatusResponse']()


def _stream(health: health_module.Health) -> Any:
    """Make gRPC's handler of the stream of health."""
    return grpc.method_handlers_generic_handler(
        'v1alpha1.DRAResourceHealth',
        {
            'NodeWatchResources': grpc.unary_stream_rpc_method_handler(
                health.watch,
                messages.HEALTH['NodeWatchResourcesRequest'].FromString,
                messages.HEALTH[
                    'NodeWatchResourcesResponse'
                ].SerializeToString,
            )
        },
    )


def _handler(
    service: str,
    classes: dict[str, Any],
    methods: dict[str, tuple[Callable[[Any, Any], Any], str, str]],
) -> Any:
    """Make gRPC's handler of a service.

    :param methods: for each the function, its request and its response
    """
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: grpc.unary_unary_rpc_method_handler(
                function,
                classes[request].FromString,
                classes[response].SerializeToString,
            )
            for name, (function, request, response) in methods.items()
        },
    )
