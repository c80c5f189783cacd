"""Runs the command in processes that a mark in their environment makes findable afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import httpx

from common.held_process import HeldProcess
from tasks.records.batch import ENDED
from tests.support.forking.forks import Process, start
from tests.support.workers import ROOT, SCRIPTED, WAIT_S, wait_until

COMMAND = ["-P", "-m", "cli"]
MARK = "TEST_MARK"
TIMEOUT_S = 280.0  # other tests compute meanwhile; less than a test has


class Running:
    """The command in the background, its stderr as it comes."""

    def __init__(self, process: Process, stderr: IO[str]) -> None:
        self.process = process
        self._stderr = stderr
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stderr:
            self.lines.append(line.rstrip("\n"))

    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, part: str, timeout_s: float = WAIT_S) -> str:
        """The first line on stderr that holds the part."""
        wait_until(
            lambda: any(part in line for line in self.lines),
            timeout_s,
            alive=lambda: self.process.poll() is None or any(part in line for line in self.lines),
            report=self.text,
        )
        return next(line for line in self.lines if part in line)

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def wait(self) -> int:
        """The exit code."""
        code = self.process.wait(TIMEOUT_S)
        self._reader.join()
        self._stderr.close()
        return code


class Cli:
    """The command as a user of the folder runs it, with the scripted engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.command = COMMAND
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MEDUSAQ_")}
        self.env = {
            **clean,
            MARK: self.mark,
            "PYTHONPATH": str(ROOT),
            "MEDUSAQ_ENGINE_FACTORY": SCRIPTED,
            "MEDUSAQ_LEASE_MS": "1500",
            "MEDUSAQ_DRAIN_S": "1",
            "MEDUSAQ_THREADS": "1",  # as in tests/support/servers.py
        }
        self._running: list[Running] = []

    def __call__(
        self, *arguments: str, stdin: bytes = b"", file_kb: int | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end. file_kb: no file may grow beyond, as on a full disk. env: more variables."""
        command = [sys.executable, *self.command, *arguments]
        if file_kb is not None:
            # -B: a .pyc that is cut short would be kept, and break every later import
            command = [
                "prlimit",
                f"--fsize={file_kb * 1024}",
                sys.executable,
                "-B",
                *self.command,
                *arguments,
            ]
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            process = start(command, self.folder, {**self.env, **env}, out, err, given)
            try:
                code = process.wait(TIMEOUT_S)
            finally:
                process.kill()
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode())
        assert "Traceback" not in said[1], said[1]
        return subprocess.CompletedProcess(command, code, *said)

    def start(self, *arguments: str, stdin: Path = Path(os.devnull), **env: str) -> Running:
        """Run it in the background."""
        ours, theirs = os.pipe()
        command = [sys.executable, *self.command, *arguments]
        with stdin.open("rb") as given, os.fdopen(theirs, "wb") as stderr:
            variables = {**self.env, **env}
            process = start(command, self.folder, variables, subprocess.DEVNULL, stderr, given)
        running = Running(process, os.fdopen(ours, encoding="utf-8"))
        self._running.append(running)
        return running

    def processes(self) -> dict[int, str]:
        """Everything alive that this runner started, at whatever remove: pid and command line.

        The server writes its title over its environment, but it stays in its data folder, in ours.
        """
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit():
                    continue
                inside = str((entry / "cwd").readlink()).startswith(str(self.folder))
                if inside or self.mark.encode() in (entry / "environ").read_bytes():
                    words = (entry / "cmdline").read_text().rstrip("\0").split("\0")
                    found[int(entry.name)] = " ".join([*words, ""])
            except OSError:  # it ended meanwhile, or is somebody else's
                continue
        return found

    def service(self, name: str) -> int:
        """The pid of a service of the stack that was started."""
        sign = "/valkey-server " if name == "redis" else f"-m cli {name} "
        return next(pid for pid, command in self.processes().items() if sign in command)

    def kill(self, pid: int) -> None:
        """SIGKILL to one of processes(), and to no other that has its number by now."""
        with suppress(ProcessLookupError), HeldProcess(pid) as held:
            if pid in self.processes():
                held.send_signal(signal.SIGKILL)

    def gone(self) -> None:
        """Fail unless everything has ended within a few seconds."""
        wait_until(lambda: not self.processes(), 8, report=lambda: str(self.processes()))

    def close(self) -> None:
        for running in self._running:
            running.send(signal.SIGKILL)
            running.wait()
        try:
            self.gone()
        finally:
            for pid in self.processes():
                self.kill(pid)


def write_jsonl(path: Path, values: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Begun:
    """A run that was begun and has not ended: what its folder says, and its batches at a gateway."""

    def __init__(self, results: Path, url: str) -> None:
        self.record = results.with_name(results.name + ".run") / "run.json"
        self.url = url

    def read(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.record.read_bytes())
        return content

    def batches(self) -> list[dict[str, Any]]:
        """Those that the record names by now."""
        try:
            ids = [part["batch_id"] for part in self.read()["parts"]]
        except FileNotFoundError:
            return []
        return [httpx.get(f"{self.url}/v1/batches/{one}").raise_for_status().json() for one in ids if one]

    def done(self) -> int:
        """How many requests have ended."""
        counts = [batch["request_counts"] for batch in self.batches()]
        return sum(count["completed"] + count["failed"] for count in counts)

    def done_or_away(self) -> int:
        """Likewise; -1 while the gateway is away."""
        try:
            return self.done()
        except httpx.HTTPError:
            return -1

    def ended(self) -> bool:
        batches = self.batches()
        return bool(batches) and all(batch["status"] in ENDED for batch in batches)


def texts(path: Path) -> list[tuple[str, str]]:
    """(custom_id, text) of each line of a results file without failures."""
    return [
        (line["custom_id"], line["response"]["body"]["choices"][0]["message"]["content"])
        for line in read_jsonl(path)
    ]
