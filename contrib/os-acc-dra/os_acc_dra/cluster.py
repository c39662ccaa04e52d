# SPDX-License-Identifier: Apache-2.0

"""The calls to the API server, with objects as plain dictionaries.

The classes of the Kubernetes client would drop fields that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import json
from typing import Any

import kubernetes
import urllib3

from os_acc_dra import errors

_API = ('resource.k8s.io', 'v1')
_SLICES = (*_API, 'resourceslices')
_FAILURES = (
    kubernetes.client.ApiException,
    urllib3.exceptions.HTTPError,
    OSError,
    ValueError,
)
#: Seconds that a watch lasts.
_WATCH = 240
#: Seconds to wait for a connection, and for an answer.
_TIMEOUT = (5, 15)


class Cluster:
    """The API server of the cluster.

    :param kubeconfig: the path of a kubeconfig; empty: the service account of
        the Pod, whose token the client reads again when it is renewed
    :raises ConfigurationError: if there is neither
    """

    def __init__(self, kubeconfig: str = '') -> None:
        configuration = kubernetes.client.Configuration()
        try:
            if kubeconfig:
                kubernetes.config.load_kube_config(
                    kubeconfig, client_configuration=configuration
                )
            else:
                kubernetes.config.load_incluster_config(configuration)
        except (kubernetes.config.ConfigException, OSError) as err:
            where = f'kubeconfig {kubeconfig}' if kubeconfig else 'in a Pod'
            raise errors.ConfigurationError(
                f'the API server is unknown ({where}): {err}'
            ) from err
        # A late answer is as bad as none: the kubelet asks again.
        configuration.retries = False
        client = kubernetes.client.ApiClient(configuration)
        # It takes and gives plain dictionaries, of every kind of object.
        self._objects = kubernetes.client.CustomObjectsApi(client)
        self._core = kubernetes.client.CoreV1Api(client)

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a ResourceClaim.

        :raises ServerError: with status 404 if there is none
        """
        found: dict[str, Any] = self._call(
            f'claim {namespace}/{name}',
            self._objects.get_namespaced_custom_object,
            *_API,
            namespace,
            'resourceclaims',
            name,
        )
        return found

    def claims(self) -> list[dict[str, Any]]:
        """Read all ResourceClaims, some hundreds at a time."""
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {'limit': 500}
        while True:
            answer = self._call(
                'claims',
                self._objects.list_cluster_custom_object,
                *_API,
                'resourceclaims',
                **page,
            )
            found += _items('claims', answer)
            more = (answer.get('metadata') or {}).get('continue')
            if not more:
                return found
            page['_continue'] = more

    def replace_claim_status(self, body: dict[str, Any]) -> None:
        """Replace the status of a ResourceClaim.

        :raises ServerError: with status 409 if the claim has changed since it
            was read
        """
        found = body['metadata']
        self._call(
            f'status of claim {found["namespace"]}/{found["name"]}',
            self._objects.replace_namespaced_custom_object_status,
            *_API,
            found['namespace'],
            'resourceclaims',
            found['name'],
            body,
        )

    def node_uid(self, name: str) -> str:
        """The UID of a node."""
        node = self._call(f'node {name}', self._core.read_node, name)
        uid: str = node.metadata.uid
        return uid

    def slices(self, driver: str, node: str) -> list[dict[str, Any]]:
        """Read the ResourceSlices of a driver on a node."""
        answer = self._call(
            'slices',
            self._objects.list_cluster_custom_object,
            *_SLICES,
            field_selector=_selector(driver, node),
        )
        return _items('slices', answer)

    def create_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        """Create a ResourceSlice; returns it as the server has it."""
        answer: dict[str, Any] = self._call(
            f'slice {body["metadata"]["name"]}',
            self._objects.create_cluster_custom_object,
            *_SLICES,
            body,
        )
        return answer

    def replace_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        """Replace a ResourceSlice; returns it as the server has it."""
        name = body['metadata']['name']
        answer: dict[str, Any] = self._call(
            f'slice {name}',
            self._objects.replace_cluster_custom_object,
            *_SLICES,
            name,
            body,
        )
        return answer

    def delete_slice(self, name: str) -> None:
        """Delete a ResourceSlice; one that is gone is not an error."""
        try:
            self._call(
                f'slice {name}',
                self._objects.delete_cluster_custom_object,
                *_SLICES,
                name,
            )
        except errors.ServerError as err:
            if err.status != 404:
                raise

    def watch_slices(
        self, driver: str, node: str, changed: Callable[[], None]
    ) -> None:
        """Call ``changed`` at each change of a slice, until the watch ends.

        The server ends it after some minutes.

        :raises ServerError: if it fails; what has changed is then unknown
        """
        selector = _selector(driver, node)
        listed = self._call(
            'slices',
            self._objects.list_cluster_custom_object,
            *_SLICES,
            field_selector=selector,
        )
        changed()
        try:
            for _ in kubernetes.watch.Watch().stream(
                self._objects.list_cluster_custom_object,
                *_SLICES,
                field_selector=selector,
                resource_version=listed['metadata']['resourceVersion'],
                timeout_seconds=_WATCH,
                _request_timeout=(_TIMEOUT[0], _WATCH + _TIMEOUT[1]),
            ):
                changed()
        except _FAILURES as err:
            raise _error('watch of slices', err) from err

    @staticmethod
    def _call(
        what: str, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Make one call.

        :param what: what it is about, for the error
        :raises ServerError: if it fails
        """
        try:
            return call(*args, _request_timeout=_TIMEOUT, **kwargs)
        except _FAILURES as err:
            raise _error(what, err) from err


def _items(what: str, answer: Any) -> list[dict[str, Any]]:
    """The objects of a list. A proxy may have answered something else.

    :raises ServerError: if it is no list
    """
    found = answer.get('items') if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise errors.ServerError(
            f'{what}: API server: no list, but {answer!r:.100}'
        )
    return found


def _selector(driver: str, node: str) -> str:
    return f'spec.driver={driver},spec.nodeName={node}'


def _error(what: str, err: Exception) -> errors.ServerError:
    status = getattr(err, 'status', None) or 0
    text = f'{type(err).__name__}: {err}'
    if status:
        text = f'{status} {getattr(err, "reason", "")}'
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text += f': {json.loads(getattr(err, "body", ""))["message"]}'
    return errors.ServerError(f'{what}: API server: {text}', status)
