"""What is done to the system, in this order, and what must come of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from tests.containers import previous
from tests.containers.docker import docker
from tests.containers.load import (
    LINES,
    Jobs,
    Verdict,
    Wrong,
    answers,
    judge,
    request,
    under_way,
    write_lines,
)
from tests.containers.system import TARGETS, System
from tests.support.workers import ROOT

MEASURING = "what is fastest on this machine is measured"  # in the log of a worker
MEASURED = "a call of 1, 2, 4, 8 rows takes"
MEASURED_S = 600.0
CONFINED = "grep -q '^[^ ]* / [^ ]* ro,' /proc/mounts && echo read-only; test $(id -u) != 0 && echo user"
SCALE = 3
RUN_LIMIT_S = 1200.0
KILLED = ("redis", "gateway", "io", "flower")  # and each of the workers
SCRAPED_S = 120.0
REST_S = 120.0  # several health checks of each service


@dataclass
class Trial:
    """commit: of the earlier release. known: custom_id -> the answer of a quiet system.

    checks: service -> the processor's seconds of a health check. rest: service -> share of a core.
    """

    system: System
    work: Path
    commit: str
    known: dict[str, str] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    rest: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lines = write_lines(self.work / "lines.jsonl")

    def batch(self) -> Verdict:
        with self.system.client() as client:
            return judge(answers(client, client.submit_batch(self.lines)), self.known)

    def struck(self, strike: Callable[[], float]) -> tuple[Verdict, float]:
        """A batch and single jobs, in the middle of which something happens; and the seconds it tells."""
        jobs = Jobs(self.system.url, self.known)
        with self.system.client() as client:
            batch = client.submit_batch(self.lines)
            jobs.begin()
            self.system.wait(lambda: under_way(client, batch), "the batch does not begin")
            took = strike()
            verdict = judge(answers(client, batch), self.known)
        verdict.add(jobs.end())
        return verdict, took


@dataclass(frozen=True, slots=True)
class Row:
    """What was done, what became of the work, and how long it took, or what else was found."""

    title: str
    verdict: Verdict
    found: str


def start(trial: Trial) -> list[Row]:
    """From nothing. The services may write into their volumes only."""
    trial.starts = trial.system.up()
    trial.checks = {name: trial.system.check_seconds(name) for name in TARGETS}
    for service in (*TARGETS, "redis"):
        [container] = trial.system.containers(service)
        if docker("exec", container, "sh", "-c", CONFINED).split() != ["read-only", "user"]:
            raise Wrong(f"{service}: it can write its image, or is root")
    return [Row("`up` from nothing", Verdict(), f"healthy after {max(trial.starts.values()):.0f} s")]


def cache(trial: Trial) -> list[Row]:
    """What a worker measured is known to the next one."""
    system = trial.system
    _measured(system)
    system.compose("up", "-d", "--no-build", "--force-recreate", "worker")
    system.wait_healthy(time.monotonic())
    if MEASURING in system.logs("worker"):
        raise Wrong("a new worker measures again")
    system.settings["MEDUSAQ_BATCH_INVARIANT"] = "true"  # from here on answers are compared
    system.up()
    _measured(system)  # calls of this mode
    return [Row("a new worker, with the cache of the last one", Verdict(), "nothing is measured again")]


def rest(trial: Trial) -> list[Row]:
    """Nothing is submitted."""
    system, services = trial.system, (*TARGETS, "redis")
    before = {name: system.used_seconds(name) for name in services}
    began = time.monotonic()
    time.sleep(REST_S)
    for name in services:
        trial.rest[name] = (system.used_seconds(name) - before[name]) / (time.monotonic() - began)
    return [Row(f"{REST_S:.0f} s at rest", Verdict(), f"{sum(trial.rest.values()):.1%} of a core in all")]


def _measured(system: System) -> None:
    system.wait(lambda: MEASURED in system.logs("worker"), "nothing was measured", MEASURED_S)


def job(trial: Trial) -> list[Row]:
    asked = request(0)
    with trial.system.client() as client:
        began = time.monotonic()
        done = client.wait(client.submit(asked["messages"], max_tokens=asked["max_tokens"], temperature=0))
    if not done.text:
        raise Wrong("the answer is empty")
    return [Row("one job", Verdict(submitted=1), f"{time.monotonic() - began:.1f} s")]


def batch(trial: Trial) -> list[Row]:
    with trial.system.client() as client:
        began = time.monotonic()
        found = answers(client, client.submit_batch(trial.lines))
        took = time.monotonic() - began
    trial.known = dict(found)
    return [Row(f"a batch of {LINES} lines", judge(found, trial.known), f"{took:.0f} s")]


def run(trial: Trial) -> list[Row]:
    """`medusaq run --url`, of this checkout."""
    results = trial.work / "results.jsonl"
    command = [sys.executable, "-m", "cli", "run", str(trial.lines), "-o", str(results)]
    options = ["--url", trial.system.url, "--fresh", "--no-progress"]
    began = time.monotonic()
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=RUN_LIMIT_S)
    if done.returncode:
        raise Wrong(f"medusaq run ended with {done.returncode}: {done.stderr.strip()}")
    took = time.monotonic() - began
    found = [
        (line["custom_id"], line["response"]["body"]["choices"][0]["message"]["content"])
        for line in map(json.loads, results.read_text(encoding="utf-8").splitlines())
    ]
    return [Row("`medusaq run --url`", judge(found, trial.known), f"{took:.0f} s")]


def scale(trial: Trial) -> list[Row]:
    began = time.monotonic()
    trial.system.up("--scale", f"worker={SCALE}")
    took = time.monotonic() - began
    ready = httpx.get(f"{trial.system.url}/readyz").raise_for_status().json()
    if ready["workers"] != SCALE:
        raise Wrong(f"/readyz says {ready}")
    return [Row(f"`--scale worker={SCALE}`, a batch", trial.batch(), f"healthy after {took:.0f} s")]


def kill(trial: Trial) -> list[Row]:
    system, rows = trial.system, []
    victims = [(name, container) for name in KILLED for container in system.containers(name)]
    victims += [(f"worker {n}", name) for n, name in enumerate(system.containers("worker"), 1)]
    for name, container in victims:
        verdict, took = trial.struck(partial(system.kill, container))
        rows.append(Row(f"kill -9 of {name}", verdict, f"healthy again after {took:.1f} s"))
    return rows


def restart(trial: Trial) -> list[Row]:
    """What was answered before is still there, and is answered again in the same way."""
    with trial.system.client() as client:
        before = client.wait(client.submit_batch(trial.lines), RUN_LIMIT_S)
    began = time.monotonic()
    trial.system.down()
    stopped = time.monotonic() - began
    started = max(trial.system.up().values())
    with trial.system.client() as client:
        verdict = judge(answers(client, client.batch(before.id)), trial.known)
    verdict.add(trial.batch())
    return [Row("`down`, `up`", verdict, f"{stopped:.0f} s to stop, healthy after {started:.0f} s")]


def upgrade(trial: Trial) -> list[Row]:
    """`up` of this version while the earlier one works."""
    trial.system.down("--volumes")
    with tempfile.TemporaryDirectory(prefix="medusaq-containers-") as folder:
        earlier = previous.system(trial.commit, trial.system.bases, Path(folder), trial.system)
        earlier.up()
        verdict, took = trial.struck(lambda: max(trial.system.up().values()))
    title = f"upgrade from {trial.commit} with a batch under way"
    return [Row(title, verdict, f"healthy after {took:.0f} s")]


def monitoring(trial: Trial) -> list[Row]:
    if not trial.system.bases.monitoring:
        return []
    system = trial.system
    system.compose("--profile", "monitoring", "up", "-d", "--no-build")
    prometheus = f"http://127.0.0.1:{system.ports['PROMETHEUS']}/api/v1/query?query=up"
    grafana = f"http://127.0.0.1:{system.ports['GRAFANA']}/api/dashboards/uid/medusaq"

    def scraped() -> bool:
        try:
            found = httpx.get(prometheus).json()["data"]["result"]
            return bool(found) and all(one["value"][1] == "1" for one in found)
        except (httpx.HTTPError, ValueError):
            return False

    began = time.monotonic()
    system.wait(scraped, "Prometheus does not reach the gateway", SCRAPED_S)
    system.wait(lambda: _answers(grafana), "Grafana has no dashboard", SCRAPED_S)
    took = time.monotonic() - began
    return [Row("`--profile monitoring`", Verdict(), f"scraped after {took:.0f} s")]


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.HTTPError:
        return False


CASES: dict[str, Callable[[Trial], list[Row]]] = {
    case.__name__: case
    for case in (start, cache, rest, job, batch, run, scale, kill, restart, monitoring, upgrade)
}
NEEDED = {"start", "cache", "batch"}  # by the others
