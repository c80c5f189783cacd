"""A small server that does what gateways do on their bad days."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class TroubledGateway(ThreadingHTTPServer):
    """Serves content by path, takes uploads, and breaks off or refuses as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.content: dict[str, bytes] = {}
        self.breaks: list[int] = []  # how many bytes each of the next answers gets to
        self.statuses: list[int] = []  # of the next answers
        self.ranges = True  # whether they are served
        self.seen: list[tuple[str, str | None, bytes]] = []  # path, Range or Idempotency-Key, body


@contextmanager
def troubled_gateway() -> Iterator[TroubledGateway]:
    with TroubledGateway() as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: TroubledGateway

    def do_GET(self) -> None:
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.server.seen.append((self.path, self.headers["Range"], b""))
        if self.server.statuses:
            self._error(self.server.statuses.pop(0))
        elif (content := self.server.content.get(self.path)) is None:
            self._error(404)
        elif start and self.server.ranges:
            self._send(206, content[start:])
        else:
            self._send(200, content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, self.headers["Idempotency-Key"], body))
        if self.server.statuses:
            self._error(self.server.statuses.pop(0))
        else:
            self._send(200, b'{"id": "file_1"}')

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _error(self, status: int) -> None:
        error = {"error": {"message": f"as {status}", "code": "c", "param": None, "type": "t"}}
        self._send(status, json.dumps(error).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.breaks.pop(0) if self.server.breaks and status < 400 else len(body)
        self.wfile.write(body[:cut])
        self.close_connection = True
