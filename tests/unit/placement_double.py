# SPDX-License-Identifier: Apache-2.0
"""Placement's REST API on the loopback, as far as os-acc calls it.

It answers as Placement 16.0 does, with the same status codes and error texts.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import http.server
import json
import threading
from typing import Any

import web


class Placement(http.server.ThreadingHTTPServer):
    """Resource providers and custom traits.

    :ivar providers: by UUID: name, generation, traits, inventories
    :ivar known: the traits that exist
    :ivar before_put: called with each path that is PUT, before it is handled;
        a second writer in a test
    :ivar status: answers of this status, by path
    :ivar asked: (method, path, microversion) of each request
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), _Handler)
        self.providers: dict[str, dict[str, Any]] = {}
        self.known = {'HW_CPU_X86_VMX'}
        self.before_put: Callable[[str], None] = lambda path: None
        self.status: dict[str, int] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.server_address[1]}'

    def add(self, uuid: str, name: str, *traits: str, **totals: int) -> None:
        self.known.update(traits)
        self.providers[uuid] = {
            'name': name,
            'generation': 3,
            'traits': set(traits),
            'inventories': {
                each: {'total': total, 'reserved': 0, 'max_unit': total}
                for each, total in totals.items()
            },
        }

    def change(self, uuid: str, *traits: str) -> None:
        """Set the traits of a provider, as another client does."""
        self.known.update(traits)
        with self.lock:
            self.providers[uuid]['traits'] = set(traits)
            self.providers[uuid]['generation'] += 1

    def puts(self) -> list[str]:
        """Return the last part of the path of each PUT."""
        return [
            path.rpartition('/')[2]
            for method, path, _ in self.asked
            if method == 'PUT'
        ]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Placement

    def do_GET(self) -> None:
        self._answer(None)

    def do_PUT(self) -> None:
        length = int(self.headers.get('Content-Length') or 0)
        body = json.loads(self.rfile.read(length) or b'null')
        self.server.before_put(self.path)
        self._answer(body)

    def _answer(self, body: Any) -> None:
        version = self.headers.get('OpenStack-API-Version')
        self.server.asked.append((self.command, self.path, version))
        if self.path in self.server.status:
            self._send(self.server.status[self.path], b'<html>no</html>')
            return
        with self.server.lock:
            self._route(self.path.strip('/').split('/'), body)

    def _route(self, parts: list[str], body: Any) -> None:
        if parts[0] == 'traits' and self.command == 'PUT':
            new = parts[1] not in self.server.known
            self.server.known.add(parts[1])
            self._send(201 if new else 204)
            return
        found = self.server.providers.get(parts[1])
        if found is None:
            self._error(
                404, f'No resource provider with uuid {parts[1]} found'
            )
        elif parts[2] == 'inventories':
            self._json({'inventories': found['inventories']})
        elif self.command == 'GET' or self._set_traits(found, body):
            self._json(
                {
                    'traits': sorted(found['traits']),
                    'resource_provider_generation': found['generation'],
                }
            )

    def _set_traits(self, found: dict[str, Any], body: Any) -> bool:
        if body['resource_provider_generation'] != found['generation']:
            self._error(409, "Resource provider's generation already changed.")
            return False
        wanted = set(body['traits'])
        if missing := wanted - self.server.known:
            self._error(400, f'No such trait {", ".join(missing)}')
            return False
        # The same traits again change nothing.
        if wanted != found['traits']:
            found['traits'] = wanted
            found['generation'] += 1
        return True

    def _error(self, status: int, detail: str) -> None:
        error = {'status': status, 'detail': f'It is so.\n\n {detail}  '}
        self._json({'errors': [error]}, status)

    def _json(self, body: Any, status: int = 200) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, body: bytes = b'') -> None:
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        if status != 204:
            self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def serving() -> contextlib.AbstractContextManager[Placement]:
    return web.running(Placement())
