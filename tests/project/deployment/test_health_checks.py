"""The health checks of the containers, run without containers."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tests.project.deployment.container_files import OURS, ROOT, SERVICES, check, seconds
from tests.support.workers import Workers, environment, wait_until

HEALTH = ROOT / "docker" / "health.py"
LIMIT_S, ANSWER_S = (
    float(found) for found in re.findall(r"^(?:LIMIT_S|ANSWER_S) = (\S+)", HEALTH.read_text(), re.MULTILINE)
)
# Prints the seconds of the io worker's check without those of starting Python and importing Celery.
TIMED = """
import runpy, sys, time
from tasks.app import app
io = runpy.run_path(sys.argv[1])["io"]
began = time.perf_counter()
assert io()
print(time.perf_counter() - began)
"""


def test_every_service_waits_for_a_healthy_redis_and_has_a_check_of_its_own() -> None:
    assert "redis-cli ping" in SERVICES["redis"]["healthcheck"]["test"][1]
    for name, service in OURS.items():
        assert service["depends_on"] == {"redis": {"condition": "service_healthy"}}
        assert re.sub(r"[\[\]'\",]|CMD", "", str(check(name)["test"])).split() == [
            "python",
            "/opt/health.py",
            name,
        ]


@pytest.mark.parametrize("name", OURS)
def test_a_check_is_rare_once_the_service_has_started_and_ends_before_it_is_cut_off(name: str) -> None:
    found = check(name)
    assert seconds(found["interval"]) >= 30, "each starts a Python"
    assert seconds(found["start_interval"]) <= 2
    assert seconds(found["start_period"]) >= 60
    assert ANSWER_S < LIMIT_S < seconds(found["timeout"])


def _health(service: str, settings: Settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "docker/health.py", service],
        cwd=ROOT,
        env=environment(settings),
        capture_output=True,
        text=True,
    )


def _timed(settings: Settings) -> float:
    command = [sys.executable, "-c", TIMED, str(HEALTH)]
    return float(subprocess.check_output(command, cwd=ROOT, env=environment(settings), text=True))


@pytest.mark.stack
def test_the_checks_pass_for_a_living_service_and_fail_for_a_dead_one(
    settings: Settings, store: JobStore, workers: Workers
) -> None:
    dead = _health("worker", settings)
    assert dead.returncode == 1
    assert dead.stderr.startswith("no living worker on ")
    elsewhere = WorkerInfo("w", "m", 8, 1, pid=1, host="another-machine", started_at=0.0)
    Registry(store.db, settings.worker_ttl_s).refresh(elsewhere)
    assert _health("worker", settings).returncode == 1, "another container's worker"

    workers.model(settings)
    assert _health("worker", settings).returncode == 0

    assert _health("io", settings).returncode == 1, "a model worker is no io worker"
    io = subprocess.Popen([sys.executable, "-m", "cli", "io"], cwd=ROOT, env=environment(settings))
    try:
        wait_until(lambda: _health("io", settings).returncode == 0, 40, alive=lambda: io.poll() is None)
        assert _timed(settings) < ANSWER_S / 2, "it waits for no more answers than its own"
    finally:
        io.terminate()
        io.wait(20)


@pytest.mark.parametrize("service", ["gateway", "flower"])
def test_a_check_says_in_one_line_why_it_failed(service: str, settings: Settings) -> None:
    closed = settings.model_copy(update={"port": 1, "flower_port": 1})
    done = _health(service, closed)
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_check_is_refused(settings: Settings) -> None:
    assert "usage: health.py gateway|worker|io|flower" in _health("redis", settings).stderr


@pytest.mark.slow
def test_a_service_that_answers_byte_by_byte_does_not_prolong_the_check(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        threading.Thread(target=_trickle, args=(listening,), daemon=True).start()
        began = time.monotonic()
        done = _health("gateway", settings.model_copy(update={"port": port}))
        assert time.monotonic() - began < LIMIT_S + ANSWER_S
    assert done.returncode == 1
    assert done.stderr == f"no answer within {LIMIT_S:g} s\n"


def _trickle(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        for _ in range(30):
            time.sleep(1)
            try:
                connection.sendall(b"H")
            except OSError:
                return
