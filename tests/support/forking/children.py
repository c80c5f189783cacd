"""Children that modules of ours start by `subprocess`, as forks of a process that has imported what they do.

Each takes half a second of processor time otherwise, and with torch and transformers four. What they are sent
and answer, and how they end, is their own as before; but they are no children of this process.

    python -m tests.support.forking.children compile ...

is the command whose measurements and quantisers are forks of the servers that `addresses` names.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

from compiling.measure import child as measure_child
from compiling.source import checkpoint, converter
from engine.weights import quantise
from tests.support.forking.forks import MOST_BYTES, ROOT, Fork, Server, ask

ENGINE, TORCH = "TEST_ENGINE_FORKS", "TEST_TORCH_FORKS"  # also variables: a server's address, for others
IMPORTED = {
    ENGINE: ("compiling.measure.child", "compiling.source.source", "engine.core.engine"),
    TORCH: (
        "sentencepiece",
        "torch",
        "transformers.models.auto.configuration_auto",
        "transformers.models.auto.tokenization_auto",
    ),
}
BY_FORKS = "cli.processes.supervisor"
RUN_FILE = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


@functools.cache
def _server(kind: str) -> Server:
    """Offline, as the converter is: the hub's client reads that when it is imported."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return Server(env, (BY_FORKS, *IMPORTED[kind]))


def _fork(kind: str, words: Sequence[str], env: Mapping[str, str], files: Sequence[IO[Any] | int]) -> Fork:
    if kind not in os.environ:
        return _server(kind).start(words, Path.cwd(), env, files)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        server.connect(f"\0{os.environ[kind]}")
        return ask(server, words, Path.cwd(), env, files)


class Child:
    """What ours use of subprocess.Popen."""

    def __init__(
        self,
        kind: str,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int | IO[Any],
        stderr: int | IO[Any],
        env: Mapping[str, str] | None = None,
        text: bool = False,
        process_group: int | None = None,
    ) -> None:
        python, safely, *words = command
        if words[0] not in ("-m", "-c"):
            words = ["-c", RUN_FILE, *words]
        self.stdin = self.stdout = None
        with ExitStack() as theirs:
            if stdin == subprocess.PIPE:
                stdin, ours = os.pipe()
                theirs.callback(os.close, stdin)
                self.stdin = os.fdopen(ours, "wb")
            if stdout == subprocess.PIPE:
                ours, stdout = os.pipe()
                theirs.callback(os.close, stdout)
                self.stdout = os.fdopen(ours, "r" if text else "rb")
            variables = os.environ if env is None else env
            self._fork = _fork(kind, [python, safely, *words], variables, [stdin, stdout, stderr])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fork, name)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_error: object) -> None:
        for file in (self.stdout, self.stdin):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()
        self._fork.wait()


def run(
    kind: str,
    command: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    capture_output: bool = True,
    text: bool = True,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """What ours use of subprocess.run."""
    assert capture_output
    assert text
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with Child(kind, command, stdin=stdin, stdout=out, stderr=err, env=env) as child:
            pass
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(command, child.returncode, out.read(), err.read())


def addresses(*kinds: str) -> dict[str, str]:
    """Variables for a process whose children are forks of the servers of this one."""
    for kind in kinds:
        run(kind, [sys.executable, "-P", "-c", ""])  # a server listens once it has imported all
    return {kind: _server(kind).address for kind in kinds}


PLACES: dict[str, list[tuple[ModuleType, str, Callable[..., Any]]]] = {
    ENGINE: [(measure_child, "Popen", Child), (quantise, "Popen", Child)],
    TORCH: [(converter, "Popen", Child), (checkpoint, "run", run)],
}


def fork(kind: str) -> None:
    """From now on children of this kind are forks."""
    for module, name, other in PLACES[kind]:
        own = {**vars(subprocess), name: functools.partial(other, kind)}
        vars(module)["subprocess"] = SimpleNamespace(**own)


@contextmanager
def forking(kind: str) -> Iterator[None]:
    """While this lasts."""
    fork(kind)
    yield
    for module, _, _ in PLACES[kind]:
        vars(module)["subprocess"] = subprocess


if __name__ == "__main__":
    fork(ENGINE)
    from cli.main import main

    main()
