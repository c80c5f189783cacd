"""Ends a run of the tests as soon as one of its processes is lost, and says which, how, and at what test.

Without it pytest-xdist may wait for ever. It hears of the end once the last writer of the pipe from the
process has closed it, and a fork of the process may hold that open. It then hands the files that the process
had completed to the others once more (3.8.0): nothing in them is left to run, so that these wait for more.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import threading
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import IO, Any

import pytest

from common.held_process import HeldProcess

NOTICED_S = 5.0  # after the end of a process, until xdist has read what it still had to say
STACKS = "stacks"  # where a process writes its stacks at a fatal signal


class LostProcess:
    """In the process that has started the others."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._nodes: dict[Any, threading.Event] = {}  # set once it is down

    def pytest_configure_node(self, node: Any) -> None:
        folder: Path = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        node.workerinput[STACKS] = str(folder / f"{node.gateway.id}.stacks")
        self._nodes[node] = threading.Event()
        threading.Thread(
            target=self._watch, args=(node, os.pidfd_open(_popen(node).pid)), daemon=True
        ).start()

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._nodes[node].set()
        if error:
            for other, down in self._nodes.items():
                if not down.is_set():
                    _popen(other).send_signal(signal.SIGINT)  # it ends what its test has started
            pytest.exit(f"{self._found(node)}: the run ends here", returncode=1)

    def _watch(self, node: Any, pidfd: int) -> None:
        select.select([pidfd], [], [])
        os.close(pidfd)
        if not self._nodes[node].wait(NOTICED_S):
            _kill_holders(_popen(node).stdout)

    def _found(self, node: Any) -> str:
        running = getattr(self._config.pluginmanager.getplugin("dsession"), "sched", None)
        test = running.remove_node(node) if running is not None and node in running.nodes else None
        stacks = Path(node.workerinput[STACKS])
        if stacks.exists() and (text := stacks.read_text(errors="replace")):
            reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
            reporter.write_line(f"\n{text}")
        return f"{node.gateway.id} of the test processes {_end(_popen(node))}, at {test or 'no test'}"


def _popen(node: Any) -> Popen[bytes]:
    popen: Popen[bytes] = node.gateway._io.popen  # execnet shows it nowhere else
    return popen


def _end(process: Popen[bytes]) -> str:
    try:
        code = process.wait(NOTICED_S)
    except TimeoutExpired:
        return "no longer answers"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _kill_holders(pipe: IO[bytes] | None) -> None:
    """End the other processes that have the pipe open, so that its end is seen."""
    assert pipe is not None
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if entry.name != str(os.getpid()):
                with HeldProcess(int(entry.name)) as held:
                    if any(_is(file, pipe) for file in (entry / "fd").iterdir()):
                        held.send_signal(signal.SIGKILL)


def _is(file: Path, pipe: IO[bytes]) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(pipe.fileno()))
    except OSError:  # closed by now
        return False


@pytest.hookimpl(trylast=True)  # after pytest's own, which sends stacks to standard error
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        stacks: IO[str] = Path(config.workerinput[STACKS]).open("w")  # noqa: SIM115  # until the process ends
        faulthandler.enable(stacks)
    elif config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(LostProcess(config))
