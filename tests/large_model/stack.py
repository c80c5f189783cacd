"""`medusaq up` over models of a user, with state, caches and log in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil

from common.held_process import HeldProcess
from tests.support.medusaq_up import Failed, Running, medusaq_up, tail
from tests.support.servers import free_port
from tests.support.workers import ROOT

READY_S = 900.0  # a large model is read from a disk
STOP_S = 120.0
NEEDED = """
import sys
from cli.stack.memory_budget import served_models
from tasks.base.settings import Settings
settings = Settings(_env_file=None)
print(*(model.needed.total for model in served_models(sys.argv[1:], settings)))
"""
LANES = re.compile(r"(\d+) lanes of (\d+) tokens")  # in a worker's log
MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+)", re.MULTILINE)  # its number: of a file, or 0


class Worker:
    """A process that holds a model."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._held = HeldProcess(pid)
        self._folder = Path(f"/proc/{pid}")

    def forget_what_was_read(self) -> None:
        """From now on bytes() counts what is read of files anew."""
        (self._folder / "clear_refs").write_text("1")

    def bytes(self) -> int:
        """Of memory of its own, and of what it has read of files since forget_what_was_read().

        Not the resident size: llama.cpp copies some formats for its kernels, and does not read them again.
        """
        text = (self._folder / "smaps").read_text(encoding="utf-8")
        total = 0
        for start, following in _pairs([*MAPPING.finditer(text)]):
            lines = text[start.end() : following.start() if following else None]
            sizes = {
                name: int(kb) * 1024 for name, kb in re.findall(r"^(\w+): +(\d+) kB", lines, re.MULTILINE)
            }
            anonymous = sizes["Anonymous"]
            total += max(anonymous, sizes["Referenced"]) if int(start[1]) else anonymous
        return total

    def kill(self) -> None:
        self._held.send_signal(signal.SIGKILL)


def _pairs(found: list[re.Match[str]]) -> Iterator[tuple[re.Match[str], re.Match[str] | None]]:
    return zip(found, [*found[1:], None], strict=True)


def model_worker(running: Running) -> Worker:
    """The only one. Raises Failed if there are none or several."""
    children = psutil.Process(running.process.pid).children(recursive=True)
    found = [child.pid for child in children if _arguments(child)[-1:] == ["worker"]]
    if len(found) != 1:
        raise Failed(f"{len(found)} model workers run")
    return Worker(found[0])


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended
        return []


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
        return [int(word) for word in self._run([sys.executable, "-c", NEEDED, *map(str, models)]).split()]

    def doctor(self, model: Path) -> dict[str, tuple[bool, str]]:
        """What `medusaq doctor` says of the model, by check: whether it will work, and the finding."""
        command = [sys.executable, "-m", "cli", "doctor", "--json"]
        said = self._run(command, {"MEDUSAQ_MODEL": str(model)}, codes=(0, 1))
        findings: list[dict[str, Any]] = json.loads(said)
        return {each["check"]: (each["grade"] != "fail", each["what"]) for each in findings}

    def _run(
        self, command: Sequence[str], more: Mapping[str, str] | None = None, codes: Sequence[int] = (0,)
    ) -> str:
        env = self._env | dict(more or {})
        try:
            done = subprocess.run(
                command, cwd=self._folder, env=env, capture_output=True, text=True, timeout=READY_S
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{command[-1]}: no end within {READY_S:.0f} s") from None
        if done.returncode not in codes or not done.stdout:
            raise Failed(f"exit code {done.returncode}\n{tail(done.stderr)}")
        return done.stdout

    def up(self, models: Sequence[Path], *options: str) -> AbstractContextManager[Running]:
        """Raises Failed if it does not start, or does not end in order."""
        words = ["--no-flower", *options, *(word for model in models for word in ("--model", str(model)))]
        return medusaq_up(
            [sys.executable, "-m", "cli"],
            free_port(),
            words,
            log=self._log,
            env=self._env,
            ready_s=READY_S,
            stop_s=STOP_S,
        )

    def lanes(self) -> str:
        """Those that the last worker made, as `medusaq doctor` says it; empty without any."""
        said = [log.read_text(encoding="utf-8", errors="replace") for log in self._worker_logs()]
        found = [made for text in said for made in LANES.findall(text)]
        return "{} of {} tokens".format(*found[-1]) if found else ""

    def tail(self) -> str:
        """The ends of the logs of the last `medusaq up` and of the last worker."""
        logs = [log for log in (self._log, *self._worker_logs()[-1:]) if log.exists()]
        return "\n".join(f"{log.name}:\n{tail(log)}" for log in logs)

    def _worker_logs(self) -> list[Path]:
        """The newest last."""
        return sorted(self._folder.rglob("worker*.log"), key=lambda log: log.stat().st_mtime)
