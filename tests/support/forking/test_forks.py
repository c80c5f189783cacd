"""Forks are as processes that were begun by themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.forking.forks import ROOT, Fork, Server, start
from tests.support.workers import wait_until

SHOWN = """
import json, os, signal, sys, threading
from pathlib import Path
print(json.dumps({
    "arguments": sys.argv, "folder": os.getcwd(), "env": dict(os.environ), "pid": os.getpid(),
    "stdin": sys.stdin.read(), "threads": threading.active_count(),
    "files": [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()],
    "cmdline": Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0"),
    "environ": Path("/proc/self/environ").read_text(),
    "signals": [
        signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM)
    ],
}))
print("complaint", file=sys.stderr)
sys.exit(7)
"""
WAITS = "import sys, time; print('began', flush=True); time.sleep(60)"


def usual() -> dict[str, str]:
    """What most processes of tests get, after all that was imported here has set its variables."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(command: list[str], folder: Path, env: dict[str, str], given: bytes = b"") -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(given)
        stdin.seek(0)
        process = start(command, folder, env, out, err, stdin)
        assert isinstance(process, Fork)
        code = process.wait(60)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
        return code, said[0], said[1]


def code(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def waiting(folder: Path) -> Fork:
    log = folder / "log"
    with log.open("wb") as out:
        process = start(code(WAITS), folder, usual(), out, subprocess.STDOUT)
    assert isinstance(process, Fork)
    wait_until(lambda: log.read_text() == "began\n")
    return process


@pytest.mark.slow
def test_all_is_its_own(tmp_path: Path) -> None:
    env = {**usual(), "MEDUSAQ_PORT": "12"}
    ended, out, err = run([*code(SHOWN), "-x", "y"], tmp_path, env, b"given")
    assert (ended, err) == (7, "complaint\n")
    shown = json.loads(out)
    assert shown["arguments"] == ["-c", "-x", "y"]
    assert (shown["folder"], shown["stdin"]) == (str(tmp_path), "given")
    assert shown["env"]["MEDUSAQ_PORT"] == "12"
    assert env.items() <= shown["env"].items()
    assert (shown["threads"], shown["signals"]) == (1, [True, signal.SIG_DFL])
    assert shown["cmdline"] == [sys.executable, "-c", SHOWN, "-x", "y"]
    assert "MEDUSAQ_PORT=12" in shown["environ"]
    assert len([file for file in shown["files"] if file != os.devnull]) == 3, "input, output and error"


def test_a_module_is_run_as_by_its_name(tmp_path: Path) -> None:
    ended, out, err = run([sys.executable, "-P", "-m", "cli", "--version"], tmp_path, usual())
    assert (ended, err) == (0, "")
    assert out.startswith("medusaq ")


@pytest.mark.slow
def test_other_imports_take_a_process_of_their_own_once(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as out:
        env = {**usual(), "OTHER": "1"}
        others = [start(code("pass"), tmp_path, env, out, subprocess.STDOUT) for _ in range(2)]
        assert [type(other) for other in others] == [subprocess.Popen, Fork]
        assert [other.wait(30) for other in others] == [0, 0]


def test_an_error_is_seen(tmp_path: Path) -> None:
    ended, _, err = run(code("raise ValueError('broken')"), tmp_path, usual())
    assert ended == 1
    assert err.endswith("ValueError: broken\n")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_the_signal_that_ended_it_is_told(tmp_path: Path, sent: signal.Signals) -> None:
    process = waiting(tmp_path)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(sent)
    assert process.wait(30) == -sent
    assert process.poll() == process.returncode == -sent
    process.kill()  # has no effect, and harms no other


@pytest.mark.slow
def test_what_still_runs_ends_with_the_server(tmp_path: Path) -> None:
    server = Server(usual())
    with tempfile.TemporaryFile() as out:
        forks = [
            server.start(code(WAITS), tmp_path, usual(), [subprocess.DEVNULL, out, out]) for _ in range(2)
        ]
    server.close()
    assert all(fork.wait(30) == -signal.SIGKILL for fork in forks)
