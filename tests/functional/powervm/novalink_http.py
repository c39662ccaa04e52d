# SPDX-License-Identifier: Apache-2.0

"""The HTTP server of novalink.py."""

from __future__ import annotations

import dataclasses
from http import server


@dataclasses.dataclass
class Answer:
    status: int
    body: bytes = b''
    etag: str | None = None


class Handler(server.BaseHTTPRequestHandler):
    def _handle(self) -> None:
        try:
            body = self.rfile.read(int(self.headers['Content-Length'] or 0))
            answer = self.server.novalink.answer(
                self.command, self.path, self.headers, body
            )
            if answer is None:
                return
            self.send_response(answer.status)
            # Without this pypowervm expects an HMC.
            self.send_header('X-MC-Type', self.server.novalink.mc_type)
            self.send_header('Content-Type', 'application/atom+xml')
            self.send_header('Content-Length', str(len(answer.body)))
            if answer.etag:
                self.send_header('ETag', answer.etag)
            self.end_headers()
            self.wfile.write(answer.body)
        except ConnectionError:
            pass  # the client did not wait for the response

    do_GET = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: the tests read .requests."""


class Server(server.ThreadingHTTPServer):
    request_queue_size = 64

    def __init__(self, novalink) -> None:
        self.novalink = novalink
        super().__init__(('127.0.0.1', 0), Handler)
