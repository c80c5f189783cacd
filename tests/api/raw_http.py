"""HTTP on bare sockets: what no client library would send."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

from tests.api.conftest import GatewayProcess

ANSWER_LIMIT_S = 30.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """Of an error in the API's shape."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return str(error["code"])


def connect(gateway: GatewayProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), ANSWER_LIMIT_S)


def read_answer(connection: socket.socket) -> Answer:
    """The next answer, without a byte of what follows it."""
    with closing(HTTPResponse(connection)) as answer:
        answer.fp.close()
        answer.fp = connection.makefile("rb", buffering=0)
        answer.begin()
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status, headers, answer.read())


def send(connection: socket.socket, pieces: Iterable[bytes]) -> None:
    """All of them, or as many as the server takes until it closes."""
    with suppress(ConnectionError):
        for piece in pieces:
            connection.sendall(piece)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes; False when it sends something instead."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def reset(connection: socket.socket) -> None:
    """Close with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def repeated(piece: bytes, size: int) -> Iterator[bytes]:
    """At least `size` bytes of it, 64 KB or more at a time."""
    block = piece * (65_536 // len(piece) + 1)
    for _ in range(size // len(block) + 1):
        yield block


class Memory:
    """The resident memory of a process from now on."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")
        (self._proc / "clear_refs").write_text("5")  # forget the peak
        self._before = self._mb("VmRSS")

    def growth_mb(self) -> float:
        """From now until its peak."""
        return self._mb("VmHWM") - self._before

    def _mb(self, name: str) -> float:
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))
