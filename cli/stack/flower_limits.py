"""Limits for Flower's HTTP server: tornado does not limit connections, and waits an hour for a request."""

from __future__ import annotations

from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

CONNECTIONS = 200  # enough for some browsers and API clients
IDLE_S = 60.0  # between two requests, and until the headers of one are complete
BODY_S = 60.0  # for the body of a request
BODY_BYTES = 1024 * 1024  # tornado's default is 100 MB


class BoundedServer(HTTPServer):
    """Closes connections beyond CONNECTIONS at once. Headers have tornado's own limit of 64 KB."""

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        if len(self._connections) >= CONNECTIONS:
            stream.close()
        else:
            super().handle_stream(stream, address)


def bound_flower() -> None:
    """Apply these limits to every HTTP server that this process creates from now on."""
    HTTPServer.configure(
        BoundedServer,
        idle_connection_timeout=IDLE_S,
        body_timeout=BODY_S,
        max_buffer_size=BODY_BYTES,
    )
