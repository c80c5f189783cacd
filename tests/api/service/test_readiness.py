"""/readyz asks for no key, so that what it costs Redis must not grow with who asks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from api.service.dependencies import READY_AGE_S, UNREADY_AGE_S
from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tests.support.workers import Workers, wait_until

ASKED = 300
CALLS = 150  # of Redis in READY_AGE_S: for one look, and for all that the workers do meanwhile
CALLS_OF_A_LOOK = 8

pytestmark = pytest.mark.stack


def test_while_something_is_missing_redis_is_asked_ten_times_a_second(
    http: httpx.Client, store: JobStore
) -> None:
    """No worker is there, and many ask at the same moment."""
    assert http.get("/readyz").status_code == 503
    before, began = commands(store), time.monotonic()
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda _: http.get("/readyz").status_code, range(ASKED)))
    assert set(answers) == {503}
    looks = 2 + (time.monotonic() - began) / UNREADY_AGE_S
    assert commands(store) - before < CALLS_OF_A_LOOK * looks


def test_however_many_ask_redis_is_asked_twice_a_second(
    http: httpx.Client, model_worker: Workers, gateway_settings: Settings, store: JobStore
) -> None:
    model_worker.io(gateway_settings)
    wait_until(lambda: http.get("/readyz").json()["io_worker"] is True)
    before, began = commands(store), time.monotonic()
    for _ in range(ASKED):
        assert http.get("/readyz").status_code == 200
    looks = 1 + (time.monotonic() - began) / READY_AGE_S
    assert commands(store) - before < CALLS * looks


def commands(store: JobStore) -> int:
    """Commands that Redis has run, in scripts too."""
    return int(store.db.redis.info("stats")["total_commands_processed"])
