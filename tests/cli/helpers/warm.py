"""Processes of the command that need not import it: forks of one that has, with all else of their own.

Arguments, folder, environment, standard files, exit code and whatever they start are those of a process that
was begun as a user begins it. Imports take half of what most commands do.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from tests.support.workers import ROOT

IMPORTED = (
    "cli.main",
    "cli.doctor.checks",
    "cli.gateway.retrying_client",
    "cli.run.session",
    "cli.stack.ephemeral_stack",
    "cli.views.progress",
    "tasks.store.api_keys",
)
# Not by an import:
READ_LATER = ("MEDUSAQ_", "SCRIPTED_", "FLOWER_", "TEST_", "PYTEST_", "XDG_", "HF_", "AWS_")
MOST_BYTES = 1 << 20  # of a request


class Warm:
    """Runs commands one after another."""

    def __init__(self) -> None:
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(READ_LATER)}
        self._env["PYTHONPATH"] = str(ROOT)
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        with theirs:
            code = f"from {__name__} import serve; serve({theirs.fileno()})"
            command = [sys.executable, "-P", "-c", code]
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether what was imported would be the same with these variables."""
        asked = {name: value for name, value in env.items() if not name.startswith(READ_LATER)}
        return asked == self._env

    def run(
        self, arguments: Sequence[str], folder: Path, env: Mapping[str, str], timeout_s: float
    ) -> tuple[int, str, str]:
        """The exit code, and what was written to stdout and stderr by it and whatever it has started."""
        request = {"arguments": list(arguments), "folder": str(folder), "env": dict(env)}
        ends = [os.pipe(), os.pipe()]
        theirs = [write for _, write in ends]
        socket.send_fds(self._ours, [json.dumps(request).encode()], theirs)
        for end in theirs:
            os.close(end)
        said = [b"", b""]

        def read(index: int) -> None:
            with os.fdopen(ends[index][0], "rb") as pipe:
                said[index] = pipe.read()

        readers = [threading.Thread(target=read, args=(index,), daemon=True) for index in range(2)]
        for reader in readers:
            reader.start()
        self._ours.settimeout(timeout_s)
        pid = int(self._ours.recv(100))
        try:
            code = int(self._ours.recv(100))
        except TimeoutError:
            os.kill(pid, 9)
            self._ours.recv(100)
            raise
        for reader in readers:
            reader.join(timeout_s)
        assert not any(reader.is_alive() for reader in readers), "something that it started has its stdout"
        return code, said[0].decode(), said[1].decode()

    def close(self) -> None:
        self._ours.close()
        self._process.wait(10)


def serve(number: int) -> None:
    """Fork for every request, until whoever asks is gone; returns in the forks too, when they are done."""
    before = set(os.environ)
    for name in IMPORTED:
        import_module(name)
    by_imports = {name: value for name, value in os.environ.items() if name not in before}
    assert threading.active_count() == 1, "a thread would be missing in the forks"
    with socket.socket(fileno=number) as asked:
        while True:
            request, ends, _, _ = socket.recv_fds(asked, MOST_BYTES, 2)
            if not request:
                return
            pid = os.fork()
            if not pid:
                break
            for end in ends:
                os.close(end)
            asked.send(str(pid).encode())
            _, status = os.waitpid(pid, 0)
            asked.send(str(os.waitstatus_to_exitcode(status)).encode())
    for end, place in zip(ends, (1, 2), strict=True):
        os.dup2(end, place)
        os.close(end)
    wanted = json.loads(request)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update({**by_imports, **wanted["env"]})
    sys.argv = ["cli", *wanted["arguments"]]
    runpy.run_module("cli", run_name="__main__", alter_sys=True)
