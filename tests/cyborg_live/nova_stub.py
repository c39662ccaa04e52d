# SPDX-License-Identifier: Apache-2.0

"""As much of Nova as Cyborg calls: it takes all external events.

Usage: python nova_stub.py PORT

The events are written to stdout.
"""

from __future__ import annotations

import http.server
import json
import sys
from typing import Any


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_GET(self) -> None:
        link = {'rel': 'self', 'href': f'http://{self.headers["Host"]}/v2.1/'}
        version = {
            'id': 'v2.1',
            'status': 'CURRENT',
            'version': '2.96',
            'min_version': '2.1',
            'links': [link],
        }
        self._answer({'version': version, 'versions': [version]})

    def do_POST(self) -> None:
        length = int(self.headers.get('Content-Length') or 0)
        events = json.loads(self.rfile.read(length))['events']
        sys.stdout.write(f'{json.dumps(events)}\n')
        sys.stdout.flush()
        self._answer({'events': [{**each, 'code': 200} for each in events]})

    def _answer(self, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, form: str, *args: Any) -> None:
        """Write no line for each request."""


if __name__ == '__main__':
    address = ('127.0.0.1', int(sys.argv[1]))
    http.server.ThreadingHTTPServer(address, Handler).serve_forever()
