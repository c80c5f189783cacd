"""`medusaq top` in a terminal of its own, against a gateway that comes and goes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from cli.processes.restart_backoff import Restart
from cli.views import snapshot
from cli.views.model_states import ModelState, model_states
from cli.views.snapshot import Snapshot, Speeds
from cli.views.top_view import view
from tasks.base.settings import Settings
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import COMMAND, Cli
from tests.support.forking.forks import Process, start
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import ROOT, Workers, environment, wait_until

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LEFT = "\x1b[?1049l"  # the screen of before
BATCH: dict[str, Any] = {
    "id": "batch_" + "0" * 32,
    "status": "in_progress",
    "request_counts": {"total": 2000, "completed": 480, "failed": 20},
}


def picture(at: float, ended: float = 0.0, batches: tuple[dict[str, Any], ...] = ()) -> Snapshot:
    samples = {
        ("medusaq_redis_up", frozenset[tuple[str, str]]()): 1.0,
        ("medusaq_batches_led", frozenset[tuple[str, str]]()): 1.0,
        ("medusaq_jobs_ended_total", frozenset({("status", "succeeded")})): ended,
        ("medusaq_queue_jobs", frozenset({("priority", "bulk")})): 1234567.0,
        ("medusaq_queue_oldest_seconds", frozenset({("priority", "bulk")})): 4000.0,
        ("medusaq_model_queue_jobs", frozenset({("priority", "bulk"), ("model", "vicuna")})): 321.0,
        ("medusaq_model_queue_oldest_seconds", frozenset({("priority", "bulk"), ("model", "vicuna")})): 60.0,
    }
    worker = {"id": "a-machine-with-a-long-name:12345", "slots": 16, "kv_cells": 8192, "metrics": {}}
    models = [
        {"id": "SmolLM2-135M-Instruct", "workers": 1, "workers_detail": [worker]},
        {"id": "small", "workers": 0, "workers_detail": []},
    ]
    return Snapshot(at, samples, models, batches)


class InTerminal:
    """The command with a terminal of this size."""

    def __init__(self, env: dict[str, str], columns: int, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, *COMMAND, "top", *arguments],
            env={**env, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(theirs)
        self.text = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 65536):
                self.text += data.decode(errors="replace")
        except OSError:  # the other end is closed
            pass

    def wait_for(self, part: str, after: int = 0) -> int:
        """Until it was shown after so many characters; how many there are by then."""
        wait_until(lambda: part in ESCAPES.sub("", self.text[after:]), report=lambda: self.text)
        return len(self.text)

    def end(self, signum: int) -> int:
        self.process.send_signal(signum)
        code = self.process.wait(20)
        self._reader.join()
        os.close(self._ours)
        return code


@pytest.mark.parametrize("width", [12, 30, 60, 79, 80, 120])
def test_it_fits_the_terminal(width: int) -> None:
    console = Console(width=width, record=True, file=Path(os.devnull).open("w"))  # noqa: SIM115
    now = picture(1.0, batches=(BATCH,))
    models = model_states(now)
    console.print(view(console, "http://127.0.0.1:7860", now, Speeds(), None, models))
    lines = console.export_text().splitlines()
    console.file.close()
    assert len(lines) > 8
    assert max(map(len, lines)) <= width
    if width >= 60:
        assert any("1,234,567" in line and "1 h 06 min" in line for line in lines)
        assert any("vicuna" in line and "321" in line for line in lines), "of them for one model"
        assert any("25% of 2,000" in line for line in lines)


def test_windows_are_shown_by_their_lines() -> None:
    window = {
        "id": f"win_{'0' * 32}-2049",
        "status": "running",
        "lines": f"{BATCH['id']} lines 2,049 to 2,112",
        "line_counts": {"total": 64, "ended": 12},
        "worker": "here:1",
    }
    console = Console(width=80, record=True, file=io.StringIO())
    now = replace(picture(1.0, batches=(BATCH,)), windows=[window, {**window, "worker": "here:2"}])
    console.print(view(console, "http://127.0.0.1:7860", now, Speeds(), None))
    lines = console.export_text().splitlines()
    assert any(re.search(r"batch_0000000… lines 2,049 to 2,112 +12 of 64 +here:1", line) for line in lines)
    assert "2 windows of 128 lines run" in lines[-1]


def test_what_each_model_does() -> None:
    """By the gateway alone, and with what a supervisor on this machine has noted."""
    assert model_states(picture(1.0)) == [
        ModelState("SmolLM2-135M-Instruct", "running", 1),
        ModelState("small", "parked"),
        ModelState("vicuna", "no worker", waiting=321, oldest_s=60.0),
    ]
    noted = [
        {"name": "SmolLM2-135M-Instruct", "phase": "stopping", "need": 5, "refusal": None},
        {"name": "small", "phase": "running", "need": 6, "refusal": "no luck"},
        {"name": "vicuna", "phase": "loading", "need": 7, "refusal": None},
    ]
    states = [(model.state, model.need) for model in model_states(picture(1.0), noted)]
    assert states == [("stopping", 5), ("failed", 6), ("loading", 7)]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ModelState("a", "no worker", waiting=1), "jobs wait for a, which no live worker serves"),
        (ModelState("a", "failed", 1), "a cannot be loaded, and its jobs fail: medusaq doctor"),
        (ModelState("a", "parked", waiting=1), "all is well"),
    ],
)
def test_the_first_line_says_what_is_wrong_with_a_model(model: ModelState, said: str) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(view(console, "http://127.0.0.1:7860", picture(1.0), Speeds(), None, [model]))
    assert console.export_text().startswith(said)


@pytest.mark.parametrize("width", [30, 60, 120])
def test_a_service_that_rests_is_shown_whatever_else_is_wrong(width: int) -> None:
    resting = Restart("worker", 6, time.time() - 60, "killed by SIGKILL", 16.0, time.time() + 14)
    started = Restart("io", 1, time.time() - 60, "exit code 1", 0.5, None)
    console = Console(width=width, record=True, file=io.StringIO())
    now = picture(1.0)
    console.print(view(console, "http://127.0.0.1:7860", now, Speeds(), None, [], [started, resting]))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("worker ended 6 times since")
    assert any(re.search(r"^worker +6 .*in 1[34](\.\d)? s$", line) for line in lines), lines
    assert any(re.search(r"^io +1 .*started$", line) for line in lines), lines


def test_speeds_come_of_two_looks() -> None:
    later = {**BATCH, "request_counts": {"total": 2000, "completed": 520, "failed": 20}}
    before, now = picture(10.0, 5.0, (BATCH,)), picture(14.0, 25.0, (later,))
    speeds = Speeds.between(before, now)
    assert (speeds.jobs_per_s, speeds.lines_per_s) == (5.0, {BATCH["id"]: 10.0})
    assert Speeds.between(None, now) == Speeds()


@pytest.mark.stack
def test_one_picture(cli: Cli, gateway: str) -> None:
    wait_until(lambda: "medusaq_batches_led 1" in httpx.get(f"{gateway}/metrics").text)
    shown = cli("top", "--once", "--url", gateway)
    assert shown.returncode == 0, shown.stderr
    assert "all is well" in shown.stdout
    assert re.search(r"^interactive +0 +-$", shown.stdout, re.MULTILINE)
    assert "scripted" in shown.stdout
    piped = cli("top", "--url", gateway)
    assert piped.stdout.splitlines()[1:] == shown.stdout.splitlines()[1:], "a pipe gets one picture"


def test_no_gateway(cli: Cli) -> None:
    ended = cli("top", "--url", f"http://127.0.0.1:{free_port()}")
    assert ended.returncode == 4
    assert "connection refused" in ended.stderr


@pytest.mark.stack
def test_a_signal_whose_exception_is_dropped_ends_it(
    in_process: InProcessCli, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """int("1.0"), which the parser of metrics tries, drops that of a signal in its own error's formatting."""
    taken: list[Snapshot] = []
    real = snapshot.take_snapshot

    def take_snapshot(url: str) -> Snapshot:
        if taken:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        taken.append(real(url))
        return taken[-1]

    monkeypatch.setattr("cli.views.snapshot.take_snapshot", take_snapshot)
    handlers = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    shown = in_process("top", "--every", "0.2", "--url", gateway, FORCE_COLOR="1", TERM="xterm")
    assert shown.returncode == 0, shown.stderr
    assert LEFT in shown.stdout
    assert len(taken) == 2
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == handlers


def _gateway(settings: Settings) -> Process:
    command = [sys.executable, *COMMAND, "gateway"]
    process = start(command, ROOT, environment(settings), subprocess.DEVNULL, subprocess.DEVNULL)
    url = f"http://127.0.0.1:{settings.port}/healthz"

    def answers() -> bool:
        try:
            return httpx.get(url).is_success
        except httpx.TransportError:
            return False

    wait_until(answers, alive=lambda: process.poll() is None)
    return process


@pytest.mark.stack
def test_live_it_outlasts_the_gateway_and_redis_and_leaves_the_terminal_as_it_was(
    own_redis: RedisServer, workers: Workers
) -> None:
    settings = fast_settings(own_redis, port=free_port())
    url, gateway = f"http://127.0.0.1:{settings.port}", _gateway(settings)
    env = environment(settings)
    watching = InTerminal(env, 50, "--url", url, "--every", "0.2")
    other = InTerminal(env, 100, "--url", url, "--every", "0.2")
    try:
        seen = watching.wait_for("no model worker is alive")
        workers.model(settings)
        seen = watching.wait_for("no io worker is alive", seen)
        workers.io(settings)
        seen = watching.wait_for("all is well", seen)
        httpx.post(f"{url}/v1/jobs", json={"prompt": "delay=60", "max_tokens": 4})
        seen = watching.wait_for("1 running", seen)
        other.wait_for("end a second")

        gateway.kill()
        gateway.wait()
        seen = watching.wait_for("this is old: no gateway at", seen)
        gateway = _gateway(settings)
        seen = watching.wait_for("all is well", seen)
        own_redis.stop()
        watching.wait_for("the gateway cannot reach Redis", seen)
    finally:
        codes = watching.end(signal.SIGINT), other.end(signal.SIGTERM)
        gateway.kill()
        gateway.wait()
    assert codes == (0, 0)
    for text in (watching.text, other.text):
        assert LEFT in text
        assert "Traceback" not in text
