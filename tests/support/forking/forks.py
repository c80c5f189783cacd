"""Processes that need not import what they run: forks of one that has imported it (server.py).

All else is their own: arguments, folder, environment, standard files, signals, exit code and whatever they
start are those of a process that was begun as a user begins it. Imports take one to two seconds of processor
time for each service. What measures starts processes as users do: only tests fork.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

ROOT = Path(__file__).parents[3]
ADDRESS = "TEST_FORKS"  # of the server, for what a fork starts in turn
TITLE_BYTES = 4000  # of the command line and of the environment that others see
MOST_BYTES = 1 << 20  # of a request
MOST_FILES = 8
# Not by an import:
READ_LATER = (
    ADDRESS, "AWS_", "CHAOS_", "FLOWER_", "HF_", "MEDUSAQ_", "PYTEST_", "SCRIPTED_", "TEST_MARK", "XDG_"
)  # fmt: skip
KILLED = -signal.SIGKILL
_asked_for: list[dict[str, str]] = []  # once: other variables that what is imported may have read


class Process(Protocol):
    """What tests use of subprocess.Popen."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> Any: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...
    def terminate(self) -> None: ...


def start(
    command: Sequence[str | Path],
    cwd: Path,
    env: Mapping[str, str],
    stdout: IO[Any] | int,
    stderr: IO[Any] | int,
    stdin: IO[Any] | int = subprocess.DEVNULL,
) -> Process:
    """The command as a fork, or as subprocess.Popen starts it where it is none of this Python's modules."""
    words = [str(word) for word in command]
    if is_python(words) and "PYTEST_VERSION" in os.environ:
        imported, usual = read_by_imports(env), read_by_imports({**os.environ, "PYTHONPATH": str(ROOT)})
        if imported == usual or imported in _asked_for or "up" in words:  # it starts many
            return _server(json.dumps(imported, sort_keys=True)).start(
                words, cwd, env, (stdin, stdout, stderr)
            )
        _asked_for.append(imported)
    return subprocess.Popen(words, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)


def is_python(words: Sequence[str]) -> bool:
    """Whether the command is one of this Python, and known by a name or a text."""
    return words[0] == sys.executable and words[1] in ("-P", "-m", "-c")


def read_by_imports(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(READ_LATER)}


class Fork:
    """A process that is no child of this one; its server tells how it ended."""

    def __init__(self, told: socket.socket) -> None:
        self._lock = threading.Lock()
        pid, (self._pidfd,), _, _ = socket.recv_fds(told, 100, 1)
        self._told = told.detach()
        self.pid = int(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _ended(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
                self.returncode = int(os.read(self._told, 100) or KILLED)
                os.close(self._told)
                os.close(self._pidfd)
            return self.returncode


def ask(
    server: socket.socket,
    words: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    files: Sequence[IO[Any] | int],
    **more: object,
) -> Fork:
    """Have the server fork. files: standard input, output and error, and those for `places`.

    more: places, the further file descriptors of the fork; parent, the id of a process that it ends with.
    """
    told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with Path(os.devnull).open("r+b") as null, theirs:
        numbers: list[int] = []
        for file in files:
            number = file if isinstance(file, int) else file.fileno()
            same = {subprocess.DEVNULL: null.fileno(), subprocess.STDOUT: numbers[-1] if numbers else -1}
            numbers.append(same.get(number, number))
        wanted = {"command": list(words), "folder": str(folder), "env": dict(env), **more}
        socket.send_fds(server, [json.dumps(wanted).encode()], [theirs.fileno(), *numbers])
    return Fork(told)


class Server:
    """Forks; all that run when it is closed are killed. imported: in place of IMPORTED there."""

    def __init__(self, env: Mapping[str, str], imported: Sequence[str] = ()) -> None:
        self.address = f"medusaq-forks-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        with theirs:
            given = f"{theirs.fileno()}, {self.address!r}, {[*imported]!r}"
            code = f"from tests.support.forking.server import serve; serve({given})"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, "-" * TITLE_BYTES],
                cwd=ROOT,
                env={**env, "TEST_PADDING": "-" * TITLE_BYTES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def start(
        self, words: Sequence[str], folder: Path, env: Mapping[str, str], files: Sequence[IO[Any] | int]
    ) -> Fork:
        with self._lock:
            return ask(self._ours, words, folder, {**env, ADDRESS: self.address}, files)

    def close(self) -> None:
        self._ours.close()
        self._process.wait(10)


@functools.cache
def _server(env: str) -> Server:
    """Of this process, for what is imported with these variables."""
    return Server(json.loads(env))
