"""Processes that need not import what they run: forks of one that has imported it.

All else is their own: arguments, folder, environment, standard files, signals, exit code and whatever they
start are those of a process that was begun as a user begins it. Imports take one to two seconds of processor
time for each service. What measures starts processes as users do: only tests fork.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

ROOT = Path(__file__).parents[2]
# None of these may read a setting, or a constant that tests/support/tuned.py changes, by being imported.
IMPORTED = (
    "api.app",
    "api.http.bounded_protocol",
    "celery.app.amqp",
    "celery.app.events",
    "celery.app.log",
    "celery.backends.base",
    "celery.bin.worker",
    "celery.concurrency.thread",
    "celery.loaders.app",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "celery.worker.worker",
    "cli.doctor.checks",
    "cli.gateway.retrying_client",
    "cli.main",
    "cli.run.session",
    "cli.stack.ephemeral_stack",
    "cli.stack.services",
    "cli.views.progress",
    "engine",
    "kombu.transport.redis",
    "tasks.batches.leader",
    "tasks.files.factory",
    "tasks.store.api_keys",
    "tasks.webhooks.sender",
    "tasks.worker.model_worker",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
)
# Not by an import:
READ_LATER = ("MEDUSAQ_", "SCRIPTED_", "FLOWER_", "TEST_MARK", "PYTEST_", "XDG_", "HF_", "AWS_")
MOST_BYTES = 1 << 20  # of a request
KILLED = -signal.SIGKILL


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
    of_module = words[0] == sys.executable and words[1] in ("-P", "-m", "-c")
    if of_module and "PYTEST_VERSION" in os.environ and _server().fits(env):
        return _server().start(words[1:], cwd, env, [stdin, stdout, stderr])
    return subprocess.Popen(words, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)


class Fork:
    """A process that is no child of this one; its server tells how it ended."""

    def __init__(self, told: socket.socket) -> None:
        self._told = told
        self._lock = threading.Lock()
        pid, (self._pidfd,), _, _ = socket.recv_fds(told, 100, 1)
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
                self.returncode = int(self._told.recv(100) or KILLED)
                self._told.close()
                os.close(self._pidfd)
            return self.returncode


class Server:
    """Forks; all that run when it is closed are killed."""

    def __init__(self) -> None:
        self._env = _read_by_imports({**os.environ, "PYTHONPATH": str(ROOT)})
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        with theirs:
            code = f"from {__name__} import serve; serve({theirs.fileno()})"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether what was imported would be the same with these variables."""
        return _read_by_imports(env) == self._env

    def start(
        self, arguments: Sequence[str], folder: Path, env: Mapping[str, str], files: Sequence[IO[Any] | int]
    ) -> Fork:
        """arguments: of Python, with -m or -c. files: standard input, output and error."""
        request = {"arguments": list(arguments), "folder": str(folder), "env": dict(env)}
        told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with Path(os.devnull).open("r+b") as null, theirs:
            ends = [null.fileno() if file == subprocess.DEVNULL else file for file in files]
            if ends[2] == subprocess.STDOUT:
                ends[2] = ends[1]
            numbers = [end if isinstance(end, int) else end.fileno() for end in ends]
            with self._lock:
                socket.send_fds(self._ours, [json.dumps(request).encode()], [theirs.fileno(), *numbers])
        return Fork(told)

    def close(self) -> None:
        self._ours.close()
        self._process.wait(10)


@functools.cache
def _server() -> Server:
    """Of this process."""
    return Server()


def _read_by_imports(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(READ_LATER)}


def serve(number: int) -> None:
    """Fork for every request, until whoever asks is gone; returns in the forks too, when they are done."""
    before = set(os.environ)
    for name in IMPORTED:
        import_module(name)
    by_imports = {name: value for name, value in os.environ.items() if name not in before}
    assert "tasks.app" not in sys.modules, "it reads the settings"
    assert threading.active_count() == 1, "a thread would be missing in the forks"
    gc.freeze()
    with socket.socket(fileno=number) as asked:
        wanted = _until_forked(asked)
    if wanted is not None:
        os.environ.clear()
        os.environ.update({**by_imports, **wanted["env"]})
        _become(wanted["folder"], wanted["arguments"])


def _until_forked(asked: socket.socket) -> Any:
    """In each fork what it was asked for, with its standard files open; None at the end of the server."""
    told: dict[
        int, tuple[int, socket.socket]
    ] = {}  # by file descriptor of a fork: its pid, who hears of its end
    while True:
        ready, _, _ = select.select([asked, *told], [], [])
        for ended in ready:
            if isinstance(ended, int):
                pid, listener = told.pop(ended)
                os.close(ended)
                _, status = os.waitpid(pid, 0)
                with listener, suppress(OSError):  # nobody waits for it any more
                    listener.send(str(os.waitstatus_to_exitcode(status)).encode())
        if asked not in ready:
            continue
        request, (*files,), _, _ = socket.recv_fds(asked, MOST_BYTES, 4)
        if not request:
            for pid, _ in told.values():
                os.kill(pid, signal.SIGKILL)
            return None
        listener = socket.socket(fileno=files.pop(0))
        if pid := os.fork():
            for file in files:
                os.close(file)
            pidfd = os.pidfd_open(pid)
            told[pidfd] = pid, listener
            with suppress(OSError):
                socket.send_fds(listener, [str(pid).encode()], [pidfd])
            continue
        for other, (_, one) in told.items():
            os.close(other)
            one.close()
        listener.close()
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)
        return json.loads(request)


def _become(folder: str, arguments: list[str]) -> None:
    os.chdir(folder)
    kind, what, *rest = arguments[arguments[0] == "-P" :]
    sys.argv = [what if kind == "-m" else kind, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(what, {"__name__": "__main__"})
