# SPDX-License-Identifier: Apache-2.0

"""A web server on the loopback that can fail as real servers do."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import hashlib
import http.server
import json
import re
import socketserver
import threading
import time
from typing import Any
from typing import TypeVar
import urllib.parse

#: The project that owns the images unless a test says otherwise.
ADMIN = '8f2b1c7de05a4c1f9a3be1d8c6f70412'


class Server(http.server.ThreadingHTTPServer):
    """Serves what is in ``files``, and Glance's API v2 from ``images``.

    :ivar drops: how many more downloads end after half of what was asked
    :ivar trickles: paths that are sent byte by byte
    :ivar filters: whether lists of images are filtered by the query
    :ivar hook: called with each path before it is answered
    :ivar asked: (path, Range header or None) of each request
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.status: dict[str, int] = {}
        self.redirects: dict[str, str] = {}
        self.images: dict[str, dict[str, Any]] = {}
        self.drops = 0
        self.trickles: set[str] = set()
        self.ranges = True
        self.declared: dict[str, int | str] = {}
        self.page_size = 100
        self.filters = True
        self.hook: Callable[[str], None] = lambda path: None
        self.asked: list[tuple[str, str | None]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.server_address[1]}'

    def put(self, path: str, content: bytes, sidecar: bool = True) -> str:
        """Serve a file, with its checksum beside it.

        :returns: its URL
        """
        self.files[path] = content
        if sidecar:
            digest = hashlib.sha256(content).hexdigest()
            self.files[f'{path}.sha256'] = f'{digest}  x\n'.encode()
        return self.url + path

    def put_image(self, content: bytes, **values: Any) -> str:
        """Add a Glance image.

        :returns: its id
        """
        number = len(self.images) + 1
        image_id = f'0a0a0a0a-0000-4000-8000-{number:012d}'
        self.images[image_id] = {
            'id': image_id,
            'name': f'bitstream {number}',
            'status': 'active',
            'visibility': 'public',
            'owner': ADMIN,
            'size': len(content),
            'os_hash_algo': 'sha512',
            'os_hash_value': hashlib.sha512(content).hexdigest(),
            **values,
        }
        self.files[f'/image/v2/images/{image_id}/file'] = content
        return image_id

    def downloads(self, path: str) -> list[str | None]:
        """Return the Range headers of the requests for a path."""
        return [range_ for asked, range_ in self.asked if asked == path]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        path = parts.path
        self.server.asked.append((path, self.headers.get('Range')))
        self.server.headers.append(dict(self.headers))
        self.server.hook(path)
        if path in self.server.redirects:
            self.send_response(302)
            self.send_header('Location', self.server.redirects[path])
            self.send_header('Content-Length', '0')
            self.end_headers()
        elif path in self.server.status:
            self._send(b'no', status=self.server.status[path])
        elif path in self.server.files:
            self._send_file(path, self.server.files[path])
        elif path.startswith('/image'):
            self._glance(path, dict(urllib.parse.parse_qsl(parts.query)))
        else:
            self._send(b'not found', status=404)

    def _glance(self, path: str, query: dict[str, str]) -> None:
        if path in ('/image', '/image/'):
            link = {'rel': 'self', 'href': f'{self.server.url}/image/v2/'}
            self._json(
                {
                    'versions': [
                        {'id': 'v2.9', 'status': 'CURRENT', 'links': [link]}
                    ]
                },
                300,
            )
        elif path == '/image/v2/images':
            found = self._images(query.copy())
            query.pop('marker', None)
            page = found[: self.server.page_size]
            body: dict[str, Any] = {'images': page}
            if len(found) > len(page):
                query['marker'] = page[-1]['id']
                body['next'] = '/v2/images?' + urllib.parse.urlencode(query)
            self._json(body)
        else:
            image = self.server.images.get(path.rpartition('/')[2])
            if image is None:
                self._send(b'no such image', status=404)
            else:
                self._json(image)

    def _images(self, query: dict[str, str]) -> list[dict[str, Any]]:
        marker = query.pop('marker', '')
        # As Glance does: only these two values list community images.
        seen = {'public', 'private', 'shared'}
        if query.get('visibility') in ('all', 'community'):
            seen.add('community')
        if query.get('visibility') == 'all':
            del query['visibility']
        return [
            image
            for image_id, image in sorted(self.server.images.items())
            if image_id > marker
            and (
                not self.server.filters
                or (
                    image['visibility'] in seen
                    and query.items() <= image.items()
                )
            )
        ]

    def _json(self, body: Any, status: int = 200) -> None:
        self._send(json.dumps(body).encode(), status, 'application/json')

    def _send_file(self, path: str, content: bytes) -> None:
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        start, status = 0, 200
        match = re.fullmatch(
            r'bytes=([0-9]+)-', self.headers.get('Range') or ''
        )
        same = self.headers.get('If-Range') in (None, etag)
        if match and self.server.ranges and same:
            start, status = int(match[1]), 206
        rest = content[start:]
        declared = self.server.declared.get(path, len(rest))
        self.send_response(status)
        self.send_header('ETag', etag)
        self.send_header('Content-Length', str(declared))
        if status == 206:
            last = len(content) - 1
            span = f'bytes {start}-{last}/{len(content)}'
            self.send_header('Content-Range', span)
        self.end_headers()
        if self.server.drops and not path.endswith('.sha256'):
            self.server.drops -= 1
            rest = rest[: len(rest) // 2]
        with contextlib.suppress(OSError):
            while path in self.server.trickles and rest:
                self.wfile.write(rest[:1])
                rest = rest[1:]
                time.sleep(0.02)
            self.wfile.write(rest)

    def _send(
        self, body: bytes, status: int = 200, kind: str = 'text/plain'
    ) -> None:
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


_S = TypeVar('_S', bound=socketserver.BaseServer)


@contextlib.contextmanager
def running(server: _S) -> Iterator[_S]:
    """Serve in a thread, until the end of the block."""
    # It checks often whether to stop, so that a test ends at once.
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def serving() -> contextlib.AbstractContextManager[Server]:
    return running(Server())
