# SPDX-License-Identifier: Apache-2.0

"""The files that tell a container its VFIO devices (KEP-5304).

KubeVirt reads the PCI address, or the UUID of the mediated device, from such a
file only. A CDI spec of this driver mounts one file for each request:
https://github.com/kubernetes/enhancements, keps/sig-node/
5304-dra-attributes-downward-api
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import json
import os
import re
import shutil
from typing import Any
import uuid

from os_acc import objects
from os_acc.state import atomic_file
from os_acc_dra import attributes
from os_acc_dra import claims

_API_VERSION = 'metadata.resource.k8s.io/v1alpha1'
_INSIDE = '/var/run/kubernetes.io/dra-device-attributes'
#: kube-controller-manager sets it on claims that it makes from a template.
_POD_CLAIM = 'resource.kubernetes.io/pod-claim-name'
_LABEL = re.compile('[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?')
#: The first version that lets the name of a device begin with a digit.
_CDI = '0.5.0'
_SPEC = 'spec.json'


class Metadata:
    """The metadata files of the claims of this node, and their CDI specs.

    :param directory: of the driver, below the kubelet's; it survives a reboot
    :param spec_dir: where the container runtime reads CDI specs
    :param driver: the name of this driver
    """

    def __init__(self, directory: str, spec_dir: str, driver: str) -> None:
        self._directory = os.path.join(directory, 'metadata')
        self._spec_dir, self._driver = spec_dir, driver

    def write(
        self,
        claim: Mapping[str, Any],
        devices: Iterable[tuple[claims.Result, objects.AttachHandle | None]],
    ) -> dict[str, str]:
        """Write the files of a claim; it may be repeated.

        :param claim: as the API server has it
        :param devices: those of this driver that the claim has
        :returns: for each request the name of the CDI device with its file; a
            request without a VFIO device has none
        :raises OSError: if a file cannot be written
        """
        by_request: dict[str, list[dict[str, Any]]] = {}
        for result, handle in devices:
            if handle is None or not attributes.is_vfio(handle):
                continue
            by_request.setdefault(result.main_request, []).append(
                {
                    'driver': self._driver,
                    'pool': result.pool,
                    'name': result.device,
                    'attributes': attributes.of_handle(handle),
                }
            )
        if not by_request:
            return {}
        uid = claim['metadata']['uid']
        own = self._of_claim(uid)
        os.makedirs(own, mode=0o755, exist_ok=True)
        for request, found in by_request.items():
            body = _body(claim, request, found)
            _write(f'{own}/{request}-metadata.json', body)
        spec = self._spec(claim, list(by_request))
        _write(f'{own}/{_SPEC}', spec)
        _write(self._spec_path(uid), spec)
        return {
            request: f'{spec["kind"]}={device["name"]}'
            for request, device in zip(
                by_request, spec['devices'], strict=True
            )
        }

    def _spec(
        self, claim: Mapping[str, Any], requests: list[str]
    ) -> dict[str, Any]:
        uid, name = claim['metadata']['uid'], claim['metadata']['name']
        pod_claim = _pod_claim(claim)
        place = (
            f'resourceclaimtemplates/{pod_claim}'
            if pod_claim
            else f'resourceclaims/{name}'
        )
        file_name = f'{self._driver}-metadata.json'
        return {
            'cdiVersion': _CDI,
            'kind': f'{self._driver}/metadata',
            'devices': [
                {
                    'name': f'{uid}_{request}',
                    'containerEdits': {
                        'mounts': [
                            {
                                'hostPath': f'{self._of_claim(uid)}/'
                                f'{request}-metadata.json',
                                'containerPath': f'{_INSIDE}/{place}/'
                                f'{request}/{file_name}',
                                'options': ['ro', 'bind'],
                            }
                        ]
                    },
                }
                for request in requests
            ],
        }

    def remove(self, uid: str) -> None:
        """Remove what a claim has; one that has nothing is not an error."""
        try:
            own = self._of_claim(uid)
        except ValueError:
            return  # not a claim of this driver, which has taken none
        if os.path.exists(self._spec_path(uid)):
            os.unlink(self._spec_path(uid))
        if os.path.exists(own):
            shutil.rmtree(own)

    def uids(self) -> set[str]:
        """The UIDs of the claims that have files.

        :raises OSError: if the directory cannot be read
        """
        try:
            return set(os.listdir(self._directory))
        except FileNotFoundError:
            return set()

    def restore(self, uid: str) -> None:
        """Write the spec of a claim, which may be gone.

        :raises OSError: if a file cannot be read or written
        :raises ValueError: if the UID is malformed
        """
        path = f'{self._of_claim(uid)}/{_SPEC}'
        if os.path.exists(path):
            with open(path, encoding='utf-8') as file:
                _write(self._spec_path(uid), json.load(file))

    def _of_claim(self, uid: str) -> str:
        """The directory of a claim.

        :raises ValueError: if it is not a UUID, and so perhaps another path
        """
        return os.path.join(self._directory, str(uuid.UUID(uid)))

    def _spec_path(self, uid: str) -> str:
        return os.path.join(
            self._spec_dir, f'{self._driver}-metadata_{uid}.json'
        )


def _pod_claim(claim: Mapping[str, Any]) -> str | None:
    """The name that the Pod has for a claim that was made from a template.

    Any user may write such an annotation on a claim, and a mount has the name
    in its path.
    """
    found = (claim['metadata'].get('annotations') or {}).get(_POD_CLAIM, '')
    return found if _LABEL.fullmatch(found) else None


def _body(
    claim: Mapping[str, Any], request: str, devices: list[dict[str, Any]]
) -> dict[str, Any]:
    made: dict[str, Any] = {
        'apiVersion': _API_VERSION,
        'kind': 'DeviceMetadata',
        'metadata': {
            **{k: claim['metadata'][k] for k in ('name', 'namespace', 'uid')},
            # It says the same as long as the claim is prepared.
            'generation': 1,
        },
        'requests': [{'name': request, 'devices': devices}],
    }
    if pod_claim := _pod_claim(claim):
        made['podClaimName'] = pod_claim
    return made


def _write(path: str, body: Mapping[str, Any]) -> None:
    atomic_file.write(path, json.dumps(body), 0o644, 0o755)
