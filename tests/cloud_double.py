# SPDX-License-Identifier: Apache-2.0

"""Keystone, Cyborg and Placement as far as os-acc asks them, on the loopback.

keystoneauth and openstacksdk talk to it as they do to real services.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import http.server
import json
import pathlib
from typing import Any
import urllib.parse
import uuid

import web

CLOUD = 'double'
PROJECT = '1e5e627601ae4de5ad1e401d9ba25040'


def arq(**values: Any) -> dict[str, Any]:
    """A bound ARQ as Cyborg 17 returns it, with a fake device's handle.

    :param values: other values; address is that of the attach handle
    """
    address = values.pop('address', '0000:0c:00.1')
    domain, bus, rest = address.split(':')
    device, function = rest.split('.')
    return {
        'uuid': str(uuid.uuid4()),
        'state': 'Bound',
        'device_profile_name': 'crypto',
        'device_profile_group_id': 0,
        'hostname': 'vm',
        'device_rp_uuid': '823f5e9e-ef5b-3461-bd09-8006cc3755d1',
        'instance_uuid': str(uuid.uuid4()),
        'project_id': PROJECT,
        'attach_handle_type': 'TEST_PCI',
        'attach_handle_uuid': str(uuid.uuid4()),
        'attach_handle_info': {
            'domain': domain,
            'bus': bus,
            'device': device,
            'function': function,
        },
        **values,
    }


class Cloud(http.server.ThreadingHTTPServer):
    """The services.

    :ivar arqs: the ARQs of Cyborg
    :ivar profiles: the groups of the device profiles, by name
    :ivar deployables: the deployables of Cyborg
    :ivar devices: the devices of Cyborg
    :ivar providers: by UUID: name, inventories and traits of the resource
        providers of Placement
    :ivar roles: the roles of the user
    :ivar broken: the UUID of an ARQ whose attach handle is gone
    :ivar broken_too: the ids of the attach handles of others, by UUID
    :ivar failures: the status of each path that fails
    :ivar hook: called with each path before it is answered
    :ivar asked: path and query of each request
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), _Handler)
        self.arqs: list[dict[str, Any]] = []
        self.profiles: dict[str, list[dict[str, str]]] = {'crypto': [{}]}
        self.deployables: list[dict[str, Any]] = []
        self.devices: list[dict[str, Any]] = []
        self.providers: dict[str, dict[str, Any]] = {}
        self.roles = ['admin']
        self.broken: str | None = None
        self.broken_too: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.hook: Callable[[str], None] = lambda path: None
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.server_address[1]}'

    def clouds_yaml(self, directory: pathlib.Path) -> pathlib.Path:
        """Write a clouds.yaml with the cloud CLOUD.

        :returns: its path, for OS_CLIENT_CONFIG_FILE
        """
        path = directory / 'clouds.yaml'
        auth = {
            'auth_url': f'{self.url}/identity/v3',
            'username': 'nova',
            'password': 'secret',
            'project_name': 'service',
            'user_domain_id': 'default',
            'project_domain_id': 'default',
        }
        cloud = {'auth': auth, 'region_name': 'RegionOne'}
        path.write_text(json.dumps({'clouds': {CLOUD: cloud}}))
        return path

    def token(self) -> dict[str, Any]:
        catalog = [
            {
                'type': kind,
                'name': kind,
                'id': kind,
                'endpoints': [
                    {
                        'id': f'{kind}-{interface}',
                        'interface': interface,
                        'region': 'RegionOne',
                        'region_id': 'RegionOne',
                        'url': f'{self.url}{path}',
                    }
                    for interface in ('public', 'internal', 'admin')
                ],
            }
            for kind, path in (
                ('identity', '/identity/v3'),
                ('accelerator', '/accelerator/v2'),
                ('placement', '/placement'),
            )
        ]
        return {
            'token': {
                'methods': ['password'],
                'issued_at': '2026-01-01T00:00:00.000000Z',
                'expires_at': '2099-01-01T00:00:00.000000Z',
                'user': {'id': 'u', 'name': 'nova', 'domain': {'id': 'd'}},
                'project': {'id': 'p', 'name': 's', 'domain': {'id': 'd'}},
                'roles': [{'id': role, 'name': role} for role in self.roles],
                'catalog': catalog,
            }
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Cloud

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers['Content-Length']))
        self._send(self.server.token(), 201, {'X-Subject-Token': 'token'})

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        self.server.asked.append(self.path)
        self.server.hook(parts.path)
        if parts.path in self.server.failures:
            status = self.server.failures[parts.path]
            self._send({'error': 'told to fail'}, status)
            return
        query = dict(urllib.parse.parse_qsl(parts.query))
        service, _, rest = parts.path.lstrip('/').partition('/')
        answers = {
            'identity': self._identity,
            'accelerator': self._accelerator,
            'placement': self._placement,
        }
        answers[service](rest.strip('/').split('/'), query)

    def _identity(self, path: list[str], query: dict[str, str]) -> None:
        link = {'rel': 'self', 'href': f'{self.server.url}/identity/v3/'}
        version = {'id': 'v3.14', 'status': 'stable', 'links': [link]}
        self._send({'version': version})

    def _accelerator(self, path: list[str], query: dict[str, str]) -> None:
        server = self.server
        if path == ['v2', 'accelerator_requests']:
            if server.broken is not None:
                self._gone()
                return
            wanted = query.get('instance')
            found = [
                each
                for each in server.arqs
                if wanted in (None, each['instance_uuid'])
            ]
            self._send({'arqs': found})
        elif path[:2] == ['v2', 'accelerator_requests']:
            gone = {server.broken: 7, **server.broken_too}
            if path[2] in gone:
                self._gone(gone[path[2]])
                return
            for each in server.arqs:
                if each['uuid'] == path[2]:
                    self._send(each)
                    return
            self._fault(f'ExtARQ not found with uuid={path[2]}')
        elif path == ['v2', 'device_profiles']:
            names = query['name'].split(',')
            self._send(
                {
                    'device_profiles': [
                        {'name': name, 'groups': groups}
                        for name, groups in server.profiles.items()
                        if name in names
                    ]
                }
            )
        elif path == ['v2', 'deployables']:
            self._send({'deployables': server.deployables})
        elif path == ['v2', 'devices']:
            self._send({'devices': server.devices})
        else:
            self._send({}, 404)

    def _gone(self, number: int = 7) -> None:
        self._fault(f'AttachHandle not found with id={number}')

    def _fault(self, text: str) -> None:
        # As Cyborg's wsme formats it.
        fault = {'debuginfo': None, 'faultcode': 'Client', 'faultstring': text}
        self._send({'error_message': json.dumps(fault)}, 404)

    def _placement(self, path: list[str], query: dict[str, str]) -> None:
        provider = self.server.providers.get(path[1]) if path[1:] else None
        if provider is None:
            self._send({'errors': [{'status': 404}]}, 404)
        elif path[2:] == ['inventories']:
            self._send(
                {
                    'resource_provider_generation': 3,
                    'inventories': {
                        name: {'total': total, 'reserved': 0}
                        for name, total in provider['inventories'].items()
                    },
                }
            )
        else:
            self._send(
                {
                    'resource_provider_generation': 3,
                    'traits': sorted(provider['traits']),
                }
            )

    def _send(
        self,
        body: Any,
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


def serving() -> contextlib.AbstractContextManager[Cloud]:
    return web.running(Cloud())
