"""`medusaq up` over models of a user, with state, caches and log in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.servers import free_port
from tests.support.workers import ROOT

READY_S = 900.0  # a large model is read from a disk
STOP_S = 120.0
TAIL = 15  # lines of a log that an error shows
NEEDED = """
import sys
from cli.stack.memory_budget import served_models
from tasks.base.settings import Settings
settings = Settings(_env_file=None)
print(*(model.needed.total for model in served_models(sys.argv[1:], settings)))
"""


class Failed(Exception):
    """What a user would have seen, with the end of the log."""


@dataclass(frozen=True, slots=True)
class Running:
    """One `medusaq up`. ready_s: from its start until it took prompts."""

    url: str
    process: psutil.Popen
    ready_s: float

    def worker(self) -> psutil.Process:
        """The model worker, of which there is one."""
        found = [each for each in self.process.children(recursive=True) if each.cmdline()[-1:] == ["worker"]]
        if len(found) != 1:
            raise Failed(f"{len(found)} model workers")
        return found[0]


class Stack:
    """Commands of medusaq, all in one folder, with what they measure kept for the next."""

    def __init__(self, folder: Path, **settings: object) -> None:
        """settings: names of Settings."""
        self._folder, self._log = folder, folder / "up.log"
        left_out = ("MEDUSAQ_", "XDG_", "FLOWER_")
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        self._env |= {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
        self._env |= {f"MEDUSAQ_{name.upper()}": str(value) for name, value in settings.items()}

    def needed(self, models: Sequence[Path]) -> list[int]:
        """Bytes that `medusaq up` expects each model to take."""
        said = self._run([sys.executable, "-c", NEEDED, *map(str, models)])
        return [int(word) for word in said.split()]

    def doctor(self, model: Path) -> dict[str, str]:
        """What `medusaq doctor` says of the model, by subject."""
        command = [sys.executable, "-m", "cli", "doctor", "--json"]
        said = self._run(command, {"MEDUSAQ_MODEL": str(model)}, codes=(0, 1))  # 1: no gateway is running
        findings: list[dict[str, Any]] = json.loads(said)
        return {each["check"]: each["what"] for each in findings}

    def _run(
        self, command: Sequence[str], more: dict[str, str] | None = None, codes: Sequence[int] = (0,)
    ) -> str:
        done = subprocess.run(
            command, cwd=self._folder, env=self._env | (more or {}), capture_output=True, text=True
        )
        if done.returncode not in codes:
            raise Failed(f"{command[1:4]}: exit code {done.returncode}\n{_tail(done.stderr)}")
        return done.stdout

    @contextmanager
    def up(self, models: Sequence[Path], *options: str) -> Iterator[Running]:
        """Raises Failed if it does not start, or does not end in order."""
        port = free_port()
        command = [sys.executable, "-m", "cli", "up", "--port", str(port), "--no-flower", *options]
        command += [word for model in models for word in ("--model", str(model))]
        began, url = time.monotonic(), f"http://127.0.0.1:{port}"
        with self._log.open("wb") as log:
            process = psutil.Popen(
                command, cwd=self._folder, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                while not _ready(url):
                    if process.poll() is not None or time.monotonic() - began > READY_S:
                        raise Failed(f"medusaq up is not ready\n{self.tail()}")
                    time.sleep(0.2)
                yield Running(url, process, time.monotonic() - began)
                process.send_signal(signal.SIGTERM)
                if code := process.wait(STOP_S):
                    raise Failed(f"medusaq up: exit code {code}\n{self.tail()}")
            finally:
                if process.is_running():
                    for each in [*process.children(recursive=True), process]:
                        each.kill()
                    process.wait()

    def tail(self) -> str:
        return _tail(self._log.read_text(encoding="utf-8", errors="replace"))


def _tail(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()[-TAIL:])


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False
