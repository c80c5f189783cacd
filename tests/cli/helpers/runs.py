"""Runs of the command that take long enough to be seen and interrupted."""

from __future__ import annotations

import signal
from typing import Any

import httpx

from tests.cli.helpers.running import Begun, Cli, Running
from tests.support.workers import wait_until

COUNT = 24


def slow(count: int, delay: float = 0.2) -> list[dict[str, Any]]:
    return [{"custom_id": f"id-{n}", "prompt": f"answer {n} delay={delay} tokens=3"} for n in range(count)]


def held() -> list[dict[str, Any]]:
    """COUNT quick ones but for the last, so that no run ends before it was seen to begin and interrupted."""
    return [*slow(COUNT - 1, 0.05), slow(COUNT, 2.5)[-1]]


def answers(count: int) -> list[tuple[str, str]]:
    return [(f"id-{n}", f"answer {n}") for n in range(count)]


def begun(cli: Cli, running: Running, url: str, least: int = 3) -> Begun:
    """Waits until so many requests have ended."""
    run = Begun(cli.folder / "r.jsonl", url)
    wait_until(lambda: run.done() >= least, alive=lambda: running.process.poll() is None, report=running.text)
    return run


def batches_of(url: str, run_id: str) -> list[dict[str, Any]]:
    """All that this run ever began."""
    listed = httpx.get(f"{url}/v1/batches", params={"limit": "100"}).raise_for_status().json()["data"]
    return [batch for batch in listed if batch["metadata"].get("run") == run_id]


def interrupt(cli: Cli, running: Running, url: str, signum: int = signal.SIGINT) -> Begun:
    run = begun(cli, running, url)
    running.send(signum)
    assert running.wait() == 128 + signum
    return run
