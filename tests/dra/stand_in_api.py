# SPDX-License-Identifier: Apache-2.0

"""A stand-in for the API server: claims, slices and nodes, over HTTP.

It has the tokens, the optimistic locking, the limits and the watches of the
real one, as far as they are published, and fails on demand. It has no
admission, no controllers and no scheduler.
"""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import re
import threading
import time
from typing import Any
import urllib.parse
import uuid

import kubernetes_validate
import slice_limits

API = '/apis/resource.k8s.io/v1'
_FIRST = 100
Object = dict[str, Any]


class Refused(Exception):
    """The server answers with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class APIServer:
    """The server, on the loopback.

    :ivar token: the bearer token that it takes
    :ivar version: of Kubernetes, whose schemas it has
    :ivar disabled: names of fields of devices and slices that it drops, as
        those of disabled features
    :ivar refused: names of fields of slices that it refuses
    :ivar calls: each call, as 'METHOD PATH'
    :ivar rules: of the ClusterRole of the caller; each other call gets 403
    :ivar used: the rights that calls have needed: group, resource, verb
    """

    def __init__(self) -> None:
        self.token = 'secret'
        self.version = '1.36'
        self.disabled: set[str] = set()
        self.refused: set[str] = set()
        self.calls: list[str] = []
        self.rules: list[Object] | None = None
        self.used: set[tuple[str, str, str]] = set()
        self._objects: dict[str, Object] = {}
        self._events: list[tuple[str, str, Object]] = []
        self._oldest = _FIRST
        self._failing: dict[str, int] = {}
        self._cuts = 0
        self._changed = threading.Condition(threading.RLock())
        self._http = http.server.ThreadingHTTPServer(
            ('127.0.0.1', 0), _handler(self)
        )
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self._http.server_port}'

    def kubeconfig(self, path: Any) -> str:
        """Write a kubeconfig for this server."""
        path.write_text(
            json.dumps(
                {
                    'apiVersion': 'v1',
                    'kind': 'Config',
                    'current-context': 'it',
                    'contexts': [
                        {
                            'name': 'it',
                            'context': {'cluster': 'it', 'user': 'it'},
                        }
                    ],
                    'clusters': [
                        {'name': 'it', 'cluster': {'server': self.url}}
                    ],
                    'users': [{'name': 'it', 'user': {'token': self.token}}],
                }
            )
        )
        return str(path)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    # --- what a test does

    @contextlib.contextmanager
    def failing(self, part: str, status: int):
        """Answer each call whose 'METHOD PATH' has a part with an error.

        :param status: 0: the connection is cut without an answer
        """
        self._failing[part] = status
        try:
            yield
        finally:
            del self._failing[part]

    def cut(self) -> None:
        """Cut all watches."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def compact(self) -> None:
        """Forget what has happened: older watches get 410."""
        with self._changed:
            self._oldest = _FIRST + len(self._events)

    def put(self, path: str, body: Object) -> Object:
        """Write an object, whatever there was."""
        with self._changed:
            body = copy.deepcopy(body)
            old = self._objects.get(path)
            uid = old['metadata']['uid'] if old else str(uuid.uuid4())
            body['metadata'].setdefault('uid', uid)
            return self._happened('MODIFIED' if old else 'ADDED', path, body)

    def delete(self, part: str) -> int:
        """Delete the objects whose path has a part, as the kubelet does."""
        with self._changed:
            gone = [path for path in self._objects if part in path]
            for path in gone:
                self._happened('DELETED', path, self._objects[path])
                del self._objects[path]
            return len(gone)

    def slices(self) -> list[Object]:
        with self._changed:
            return [
                copy.deepcopy(each)
                for path, each in sorted(self._objects.items())
                if '/resourceslices/' in path
            ]

    def claim(
        self,
        name: str,
        devices: list[str],
        node: str,
        driver: str = 'os-acc.openstack.org',
        **more: Any,
    ) -> Object:
        """Make a claim as the scheduler leaves it.

        :param more: 'config', a list; 'reserved', whether a Pod has it
        """
        results = [
            {
                'request': f'acc{number}',
                'driver': driver,
                'pool': node,
                'device': device,
            }
            for number, device in enumerate(devices)
        ]
        allocation: Object = {'devices': {'results': results}}
        if 'config' in more:
            allocation['devices']['config'] = more['config']
        body = {
            'apiVersion': 'resource.k8s.io/v1',
            'kind': 'ResourceClaim',
            'metadata': {'name': name, 'namespace': 'default'},
            'spec': {
                'devices': {
                    'requests': [
                        {
                            'name': each['request'],
                            'exactly': {'deviceClassName': driver},
                        }
                        for each in results
                    ]
                }
            },
            'status': {'allocation': allocation},
        }
        if more.get('reserved', True):
            body['status']['reservedFor'] = [
                {'resource': 'pods', 'name': 'pod', 'uid': str(uuid.uuid4())}
            ]
        kubernetes_validate.validate(body, self.version, strict=True)
        path = f'{API}/namespaces/default/resourceclaims/{name}'
        return self.put(path, body)

    # --- what the server does

    def answer(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> tuple[int, Object]:
        with self._changed:
            if method == 'POST':
                return 201, self._create(path, body)
            if method == 'PUT' and path.endswith('/status'):
                return 200, self._replace_status(path, body)
            if method == 'PUT':
                return 200, self._replace(path, body)
            if path in self._objects:
                found = self._objects[path]
                if method == 'DELETE':
                    self._happened('DELETED', path, found)
                    del self._objects[path]
                return 200, found
            if method == 'GET' and re.search(
                r'/resource(slice|claim)s$', path
            ):
                return 200, self._list(path, query)
            raise Refused(404, f'{path} not found')

    def check(self, call: str, token: str, is_watch: bool = False) -> None:
        self.calls.append(call)
        for part, status in list(self._failing.items()):
            if part in call:
                raise Refused(status, 'it fails on demand')
        if token != f'Bearer {self.token}':
            raise Refused(401, 'Unauthorized')
        for right in _rights(*call.split(' '), is_watch):
            if self.rules is not None and not _allows(self.rules, *right):
                raise Refused(403, f'forbidden: {right}')
            self.used.add(right)

    def _create(self, path: str, body: Object) -> Object:
        path = f'{path}/{body["metadata"]["name"]}'
        if path in self._objects:
            raise Refused(409, f'{path} already exists')
        return self.put(path, self._checked(body))

    def _replace(self, path: str, body: Object) -> Object:
        old = self._objects.get(path)
        if old is None:
            raise Refused(404, f'{path} not found')
        version = body['metadata'].get('resourceVersion')
        if version not in (None, old['metadata']['resourceVersion']):
            raise Refused(409, 'the object has been modified')
        for name in ('driver', 'nodeName'):
            if old['spec'].get(name) != body['spec'].get(name):
                raise Refused(422, f'spec.{name} is immutable')
        return self.put(path, self._checked(body))

    def _replace_status(self, path: str, body: Object) -> Object:
        path = path.removesuffix('/status')
        old = self._objects.get(path)
        if old is None:
            raise Refused(404, f'{path} not found')
        if (
            body['metadata']['resourceVersion']
            != (old['metadata']['resourceVersion'])
        ):
            raise Refused(409, 'the object has been modified')
        new = {**copy.deepcopy(old), 'status': body['status']}
        try:
            kubernetes_validate.validate(new, self.version, strict=True)
        except kubernetes_validate.ValidationError as err:
            raise Refused(422, f'{list(err.path)}: {err.message}') from err
        allocated = {
            (each['driver'], each['pool'], each['device'])
            for each in new['status']['allocation']['devices']['results']
        }
        for each in new['status'].get('devices', ()):
            if (each['driver'], each['pool'], each['device']) not in allocated:
                raise Refused(422, 'status.devices: not allocated')
        return self.put(path, new)

    def _checked(self, body: Object) -> Object:
        """Check a slice, and drop the fields of disabled features."""
        try:
            kubernetes_validate.validate(body, self.version, strict=True)
        except kubernetes_validate.ValidationError as err:
            raise Refused(422, f'{list(err.path)}: {err.message}') from err
        wrong = slice_limits.faults(body)
        if wrong:
            raise Refused(422, '; '.join(wrong))
        if found := self.refused & set(body['spec']):
            raise Refused(422, f'spec: {found} must be with the devices')
        body = copy.deepcopy(body)
        body['spec']['ofALaterVersion'] = True
        for place in (body['spec'], *body['spec'].get('devices', ())):
            for name in self.disabled:
                place.pop(name, None)
            for taint in place.get('taints', ()):
                taint.setdefault('timeAdded', '2026-11-27T00:00:00Z')
        return body

    def _happened(self, kind: str, path: str, body: Object) -> Object:
        version = str(_FIRST + len(self._events) + 1)
        body['metadata']['resourceVersion'] = version
        self._events.append((kind, path, copy.deepcopy(body)))
        self._objects[path] = body
        self._changed.notify_all()
        return copy.deepcopy(body)

    def _list(self, path: str, query: dict[str, str]) -> Object:
        return {
            'kind': 'List',
            'apiVersion': 'v1',
            'metadata': {'resourceVersion': str(_FIRST + len(self._events))},
            'items': [
                each
                for key, each in sorted(self._objects.items())
                if _selected(path, query, key, each)
            ],
        }

    def watch(self, path: str, query: dict[str, str]):
        """Yield the lines of a watch until it ends."""
        with self._changed:
            at = int(query.get('resourceVersion') or 0)
            cuts = self._cuts
            if at < self._oldest:
                raise Refused(410, 'too old resource version')
        at -= _FIRST
        end = time.monotonic() + float(query.get('timeoutSeconds') or 60)
        while (left := end - time.monotonic()) > 0:
            with self._changed:
                if len(self._events) == at and self._cuts == cuts:
                    self._changed.wait(left)
                new, at = self._events[at:], len(self._events)
                if self._cuts > cuts:
                    return
            for kind, key, body in new:
                if _selected(path, query, key, body):
                    yield json.dumps({'type': kind, 'object': body}) + '\n'


def _rights(
    method: str, path: str, is_watch: bool
) -> list[tuple[str, str, str]]:
    """The rights that a call needs: of each group, resource and verb."""
    api, group, *rest = path.strip('/').split('/')
    if api == 'api':  # /api/v1/nodes/NAME: the core group
        group, rest = '', [group, *rest]
    rest = rest[3:] if rest[1] == 'namespaces' else rest[1:]
    verb = {'POST': 'create', 'PUT': 'update', 'DELETE': 'delete'}.get(method)
    if rest[-1] == 'status':
        # Kubernetes 1.36: and that to write what is of a driver of this node.
        return [
            (group, f'{rest[0]}/status', 'update'),
            (group, f'{rest[0]}/driver', 'associated-node:update'),
        ]
    if verb is None:
        verb = 'get' if len(rest) > 1 else 'list'
    return [(group, rest[0], 'watch' if is_watch else verb)]


def _allows(rules: list[Object], group: str, resource: str, verb: str) -> bool:
    return any(
        group in each['apiGroups']
        and resource in each['resources']
        and verb in each['verbs']
        for each in rules
    )


def _selected(
    path: str, query: dict[str, str], key: str, body: Object
) -> bool:
    """Whether an object is in a collection, and fits the fieldSelector."""
    directory, _, kind = path.rpartition('/')
    inside = key.startswith(directory) and f'/{kind}/' in key
    pairs = [
        each.partition('=')
        for each in (query.get('fieldSelector') or '').split(',')
        if each
    ]
    return inside and all(
        body['spec'].get(field.rpartition('.')[2]) == wanted
        for field, _, wanted in pairs
    )


def _handler(server: APIServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def every(self) -> None:
            url = urllib.parse.urlparse(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            size = int(self.headers.get('Content-Length') or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            try:
                server.check(
                    f'{self.command} {url.path}',
                    self.headers.get('Authorization', ''),
                    is_watch := query.get('watch') in ('1', 'true', 'True'),
                )
                if is_watch:
                    self._watch(server.watch(url.path, query))
                    return
                self._answer(
                    *server.answer(self.command, url.path, query, body)
                )
            except Refused as err:
                if not err.status:
                    self.close_connection = True
                    return
                said = {
                    'kind': 'Status',
                    'apiVersion': 'v1',
                    'code': err.status,
                    'message': str(err),
                }
                self._answer(err.status, said)

        def _answer(self, status: int, found: Object) -> None:
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _watch(self, lines: Any) -> None:
            first = next(lines, None)
            self.send_response(200)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                while first is not None:
                    data = first.encode()
                    self.wfile.write(b'%x\r\n%s\r\n' % (len(data), data))
                    first = next(lines, None)
                self.wfile.write(b'0\r\n\r\n')
            self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    for method in ('GET', 'POST', 'PUT', 'DELETE'):
        setattr(Handler, f'do_{method}', Handler.every)
    return Handler
