"""`medusaq up`, started by a command as its users do."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

LEAST_TAIL = 12  # lines of a log that an error shows


class Failed(Exception):
    """One line, and below it the end of a log."""


@dataclass(frozen=True, slots=True)
class Running:
    """ready_s: from its start until it took prompts."""

    url: str
    process: subprocess.Popen[bytes]
    ready_s: float


@contextmanager
def medusaq_up(
    program: Sequence[str],
    port: int,
    options: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    ready_s: float,
    stop_s: float,
) -> Iterator[Running]:
    """Run `PROGRAM up --port PORT OPTIONS` in the log's folder.

    Raises Failed if it takes no prompts after ready_s, or does not end in order within stop_s of SIGTERM.
    """
    command = [*program, "up", "--port", str(port), *options]
    began, url = time.monotonic(), f"http://127.0.0.1:{port}"
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, cwd=log.parent, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
    try:
        while not _takes_prompts(url):
            if process.poll() is not None or time.monotonic() - began > ready_s:
                raise Failed(f"medusaq up is not ready\n{tail(log)}")
            time.sleep(0.1)
        yield Running(url, process, time.monotonic() - began)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(stop_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"medusaq up does not end within {stop_s:.0f} s\n{tail(log)}") from None
        if code:
            raise Failed(f"medusaq up: exit code {code}\n{tail(log)}")
    finally:
        if process.poll() is None:
            process.kill()  # its children end with it
            process.wait()


def tail(said: str | Path) -> str:
    """The last lines of a text or of a log file."""
    text = said.read_text(encoding="utf-8", errors="replace") if isinstance(said, Path) else said
    return "\n".join(f"    {line}" for line in text.splitlines()[-LEAST_TAIL:])


def _takes_prompts(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False
