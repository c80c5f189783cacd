"""A stack whose services end again and again: what ends rests, and the others stay up."""

from __future__ import annotations

import re
import signal
from typing import Any

import httpx
import pytest

from cli.processes.restart_backoff import START_LIMIT
from cli.stack.state_file import running_restarts
from tests.cli.helpers.running import Cli
from tests.support.tuned import constants
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack
POISONED = 4
PAUSE = re.compile(r"worker ended \(killed by SIGKILL\), restarting it in ([\d.]+) s")


@pytest.fixture
def quick(cli: Cli) -> Cli:
    """With short pauses, so that many fit into a test."""
    cli.command = ["-P", "-m", "tests.support.tuned"]
    cli.env |= constants(
        {"cli.processes.restart_backoff.PAUSE_FIRST_S": 0.2, "cli.processes.restart_backoff.PAUSE_MAX_S": 1.6}
    )
    return cli


def sent(url: str, prompt: str) -> str:
    return str(httpx.post(f"{url}/v1/jobs", json={"prompt": prompt}).raise_for_status().json()["id"])


def ended(url: str, job: str) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def over() -> bool:
        seen.append(httpx.get(f"{url}/v1/jobs/{job}", headers={"Prefer": "wait=10"}, timeout=20).json())
        return seen[-1]["status"] not in ("queued", "running")

    wait_until(over, 120, report=lambda: str(seen[-1]))
    return seen[-1]


def test_prompts_that_crash_the_worker_end_nothing_else(quick: Cli) -> None:
    """It takes as long as eight starts of a worker or more: each prompt has two attempts and one alone."""
    running = quick.start("up", "--port", "0", "--no-flower")
    url = running.wait_for("  gateway  ").split()[-1]
    others = {name: quick.service(name) for name in ("gateway", "io", "redis")}
    poisoned = [sent(url, f"poison {number} die=1") for number in range(POISONED)]
    honest = [sent(url, f"honest {number}") for number in range(POISONED)]
    folder = quick.folder / ".medusaq"
    wait_until(lambda: any(one.ends > 2 for one in running_restarts(folder)), 60)
    said = (
        r"worker ended \d+ times since [\d:]{8}, last: killed by SIGKILL; it (rests|has been started again)"
    )
    [doctors] = [line for line in quick("doctor").stdout.splitlines() if line.startswith("warn restarts")]
    assert re.search(said, doctors), doctors
    shown = quick("top", "--once", "--url", url).stdout
    assert re.search(r"^worker +\d+ +[\d:]{8} +killed by SIGKILL +(in|started)", shown, re.MULTILINE), shown
    for job in honest:
        assert ended(url, job)["status"] == "succeeded"
    for job in poisoned:
        record = ended(url, job)
        assert (record["status"], record["error"]["code"]) == ("failed", "worker_lost")
        assert record["attempts"] == 3
    pauses = [float(found[1]) for line in running.lines if (found := PAUSE.match(line))]
    assert len(pauses) >= POISONED
    assert pauses[:4] == [0.2, 0.4, 0.8, 1.6]
    assert set(pauses[4:]) == {1.6}, "no longer than the longest"
    assert ended(url, sent(url, "after it all"))["result"]["text"] == "after it all"
    assert {name: quick.service(name) for name in others} == others
    running.send(signal.SIGINT)
    assert running.wait() == 0
    assert quick.processes() == {}


def test_services_that_were_up_may_end_as_often_as_they_like(quick: Cli) -> None:
    running = quick.start("up", "--port", "0", "--no-flower")
    url = running.wait_for("  gateway  ").split()[-1]
    # The io worker is not waited for by `up`, and killed before it is ready it would be given up.
    wait_until(lambda: "medusaq_batches_led 1" in httpx.get(f"{url}/metrics").text)
    for end in range(START_LIMIT + 1):
        for service in ("redis", "gateway", "io"):
            wait_until(lambda service=service: _runs(quick, service))  # type: ignore[misc]
            quick.kill(quick.service(service))
        for service in ("redis", "gateway", "io"):
            said = re.compile(f"{service} ended .* after {end + 1} ends" if end else f"{service} ended")
            wait_until(
                lambda said=said: any(map(said.match, running.lines)),  # type: ignore[misc]
                report=running.text,
            )

    def ready() -> bool:
        try:
            return httpx.get(f"{url}/readyz", timeout=20).is_success
        except httpx.TransportError:
            return False

    wait_until(ready, 60, alive=lambda: running.process.poll() is None, report=running.text)
    answer = quick("submit", "still there", "--wait", "--url", url)
    assert (answer.returncode, answer.stdout) == (0, "still there\n"), answer.stderr
    running.send(signal.SIGINT)
    assert running.wait() == 0


def _runs(cli: Cli, service: str) -> bool:
    """Not while it is still the program that binds it to its parent, or has none yet."""
    sign = "/valkey-server " if service == "redis" else f"-m cli {service} "
    return any(sign in command and "die_with_parent" not in command for command in cli.processes().values())
