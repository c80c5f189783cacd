"""Limits on the HTTP server of Flower: tornado has none on connections, and waits an hour for a request."""

from __future__ import annotations

from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

CONNECTIONS = 200  # pages of some people, and whoever reads the API
IDLE_S = 60.0  # between two requests, and until the headers of one are whole
BODY_S = 60.0  # for the body of one
BODY_BYTES = 1024 * 1024  # of arguments of a task; tornado's own limit is 100 MB


class BoundedServer(HTTPServer):
    """Closes connections beyond CONNECTIONS at once. Headers have tornado's own limit of 64 KB."""

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        if len(self._connections) >= CONNECTIONS:
            stream.close()
        else:
            super().handle_stream(stream, address)


def bound_flower() -> None:
    """Every HTTP server that this process makes from now on has these limits."""
    HTTPServer.configure(
        BoundedServer,
        idle_connection_timeout=IDLE_S,
        body_timeout=BODY_S,
        max_buffer_size=BODY_BYTES,
    )
