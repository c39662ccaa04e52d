# SPDX-License-Identifier: Apache-2.0

"""As much of Neutron as Nova asks for servers without a network.

Usage: python neutron_stub.py PORT

All collections are empty, and nothing can be created. The requests are written
to stdout.
"""

from __future__ import annotations

import http.server
import json
import sys
from typing import Any


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_GET(self) -> None:
        parts = self.path.partition('?')[0].strip('/').split('/')
        if parts[0] != 'v2.0':
            self._answer(200, {'versions': [self._version()]})
        elif len(parts) == 2:
            name = parts[1].removesuffix('.json').replace('-', '_')
            self._answer(200, {name: []})
        else:
            self._not_found()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get('Content-Length') or 0))
        self._not_found()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def _version(self) -> dict[str, Any]:
        link = {'rel': 'self', 'href': f'http://{self.headers["Host"]}/v2.0/'}
        return {'id': 'v2.0', 'status': 'CURRENT', 'links': [link]}

    def _not_found(self) -> None:
        error = {'type': 'NotFound', 'message': self.path, 'detail': ''}
        self._answer(404, {'NeutronError': error})

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, form: str, *args: Any) -> None:
        agent = self.headers.get('User-Agent')
        sys.stdout.write(
            f'{self.log_date_time_string()} {agent} {form % args}\n'
        )
        sys.stdout.flush()


if __name__ == '__main__':
    address = ('127.0.0.1', int(sys.argv[1]))
    http.server.ThreadingHTTPServer(address, Handler).serve_forever()
