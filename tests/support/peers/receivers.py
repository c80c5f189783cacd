"""Real receivers of webhooks for tests: HTTP servers on loopback that do as they are told."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network

from tests.support.workers import wait_until

LOOPBACK = [ip_network("127.0.0.0/8"), ip_network("::1/128")]  # where the receivers are
Answers = Callable[["Received"], tuple[int, dict[str, str]]]


@dataclass(frozen=True)
class Received:
    """One request; headers by their names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """answer may be replaced at any time; hold, when set, keeps answers back until release is called."""

    url: str
    answer: Answers = field(default=lambda _: (200, {}))
    got: list[Received] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def wait_for(self, count: int, timeout_s: float = 30.0) -> list[Received]:
        wait_until(lambda: len(self.got) >= count, timeout_s, report=lambda: str(self.got))
        return self.got


def status(code: int, **headers: str) -> Answers:
    """Always this answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: (code, named)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of connections that wait; at five, one more waits a second to try again


@contextmanager
def receiving(
    tls: ssl.SSLContext | None = None, held: bool = False, host: str = "127.0.0.1"
) -> Iterator[Receiver]:
    """A receiver on a port of its own; held: it answers only once it is released."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received = Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            receiver.got.append(received)
            receiver.released.wait(30)
            code, headers = receiver.answer(received)
            self.send_response(code)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = _Server((host, 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver = Receiver(f"http{'s' if tls else ''}://{host}:{server.server_port}/hook")
    if not held:
        receiver.released.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Speaking:
    """A server that speaks no HTTP but what it is told; as a context its URL."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/"

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            try:
                self._serve(connection)
            except OSError:
                continue  # the sender has left


class Visited:
    """Notes who connects to this address."""

    def __init__(self, host: str, port: int) -> None:
        self._listening = socket.create_server((host, port))
        self._reached: list[object] = []
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> list[object]:
        self._thread.start()
        return self._reached

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listening.accept()
            except OSError:
                return
            connection.close()
            self._reached.append(address)
