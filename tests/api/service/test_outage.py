"""The gateway while Redis is down, frozen or restarted, and while no worker lives."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.service.dependencies import WORKERS_AGE_S, Gateway
from tasks.base.queue_names import list_key
from tasks.base.settings import Settings
from tasks.files.factory import make_store
from tasks.records.job import Priority
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.records import new

pytestmark = pytest.mark.stack


@pytest.fixture
def outage_settings(own_redis: RedisServer) -> Settings:
    return fast_settings(own_redis, redis_url=own_redis.within(1))


@pytest.fixture
def outage(own_redis: RedisServer, outage_settings: Settings, tmp_path: Path) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(outage_settings, tmp_path)
    yield gateway
    own_redis.thaw()
    gateway.stop()


def refused(response: httpx.Response) -> None:
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "store_unavailable"
    assert response.json()["error"]["type"] == "server_error"


def test_redis_down_and_back(own_redis: RedisServer, outage: GatewayProcess) -> None:
    http = outage.http
    job = http.post("/v1/jobs", json={"prompt": "hi"}).json()
    own_redis.stop()
    for _ in range(2):
        refused(http.post("/v1/jobs", json={"prompt": "hi"}))
        refused(http.post("/v1/jobs", json={"prompt": "hi", "model": "m"}))
        refused(http.get(f"/v1/jobs/{job['id']}"))
        refused(http.get("/v1/jobs"))
        refused(http.post(f"/v1/jobs/{job['id']}/cancel"))
        refused(http.delete(f"/v1/jobs/{job['id']}"))
        refused(http.get("/v1/models"))
        refused(http.get(f"/v1/jobs/{job['id']}/events"))
        for stream in (False, True):
            refused(http.post("/v1/completions", json={"prompt": "hi", "stream": stream}))
    assert http.get("/healthz").status_code == 200
    ready = http.get("/readyz")
    assert (ready.status_code, ready.json()) == (503, {"redis": False, "workers": 0, "io_worker": False})
    own_redis.start()
    assert http.get(f"/v1/jobs/{job['id']}").json() == job
    assert http.post("/v1/jobs", json={"prompt": "hi"}).status_code == 202
    there = {"redis": True, "workers": 0, "io_worker": False}
    wait_until(lambda: http.get("/readyz").json() == there)


def test_redis_frozen(own_redis: RedisServer, outage: GatewayProcess) -> None:
    http = outage.http
    job = http.post("/v1/jobs", json={"prompt": "hi"}).json()
    own_redis.freeze()
    for method, url in (("POST", "/v1/jobs"), ("GET", f"/v1/jobs/{job['id']}")):
        started = time.monotonic()
        refused(http.request(method, url, json={"prompt": "hi"}))
        assert time.monotonic() - started < 8
    assert http.get("/healthz").status_code == 200
    own_redis.thaw()
    assert http.get(f"/v1/jobs/{job['id']}").status_code == 200


def test_redis_down_at_the_start_of_the_gateway(own_redis: RedisServer, tmp_path: Path) -> None:
    own_redis.stop()
    gateway = GatewayProcess(fast_settings(own_redis), tmp_path)
    refused(gateway.http.post("/v1/jobs", json={"prompt": "hi"}))
    own_redis.start()
    assert gateway.http.post("/v1/jobs", json={"prompt": "hi"}).status_code == 202
    gateway.stop()


def test_a_waiter_survives_a_restart(own_redis: RedisServer, tmp_path: Path, workers: Workers) -> None:
    """The event connection is made again: a later job's end is still pushed, not polled."""
    settings = fast_settings(own_redis)
    gateway = GatewayProcess(settings, tmp_path)
    workers.model(settings)
    own_redis.stop()
    own_redis.start()
    channels = f"{settings.key_prefix}events:*"
    store = JobStore(settings)
    wait_until(lambda: len(store.db.redis.pubsub_channels(channels)) == 1)

    def seconds() -> float:
        """From its end to the answer."""
        waiting = {"Prefer": "wait=20"}
        job = gateway.http.post("/v1/jobs", json={"prompt": "delay=2.2"}, headers=waiting).json()
        assert job["status"] == "succeeded"
        return time.time() - float(job["finished_at"])

    assert min(seconds() for _ in range(3)) < 1.5, "polled, at 2 and 4 s, it would be later"
    store.close()
    gateway.stop()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_stream_survives_an_outage(
    own_redis: RedisServer, tmp_path: Path, workers: Workers, frozen: bool
) -> None:
    """It pauses, and then goes on where it was."""
    settings = fast_settings(own_redis, redis_url=own_redis.within(1))
    gateway = GatewayProcess(settings, tmp_path)
    workers.model(settings)
    body = {"prompt": "é 🌱 ab stream=20 delay=6", "stream": True, "logprobs": 0}
    texts: list[str] = []
    tokens: list[str] = []
    with gateway.http.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            [choice] = json.loads(line.removeprefix("data: "))["choices"]
            texts.append(choice["text"])
            tokens += (choice["logprobs"] or {"tokens": []})["tokens"]
            if len(texts) == 5:
                own_redis.freeze() if frozen else own_redis.stop()
                time.sleep(1.5)
                own_redis.thaw() if frozen else own_redis.start()
    assert "".join(texts) == "é 🌱 ab " * 20
    assert tokens == ["x", *(f"x{number}" for number in range(1, 60))]
    assert len(texts) > 15, "not only at the end"
    gateway.stop()


def test_a_message_that_cannot_be_sent_leaves_an_accepted_job(
    outage: GatewayProcess, outage_settings: Settings, workers: Workers
) -> None:
    """The record is stored but the Celery list is broken: 202, and the reconciler sends it later."""
    store = JobStore(outage_settings)
    broken = list_key(outage_settings, Priority.INTERACTIVE)
    store.db.redis.set(broken, "not a list")
    job = outage.http.post("/v1/jobs", json={"prompt": "hi"})
    assert job.status_code == 202
    store.db.redis.delete(broken)
    workers.model(outage_settings)
    workers.io(outage_settings)
    url = f"/v1/jobs/{job.json()['id']}"
    wait_until(lambda: outage.http.get(url).json()["status"] == "succeeded")
    store.close()


def test_no_worker_is_not_ready_but_jobs_are_accepted(outage: GatewayProcess) -> None:
    response = outage.http.get("/readyz")
    assert (response.status_code, response.json()) == (503, {"redis": True, "workers": 0, "io_worker": False})
    assert outage.http.get("/v1/models").json() == {"object": "list", "data": []}
    body = {"prompt": "hi", "model": "not-started-yet", "max_tokens": 10**6}
    assert outage.http.post("/v1/jobs", json=body).status_code == 202


def test_a_repeat_gives_the_job_whatever_is_served_now(
    outage: GatewayProcess, outage_settings: Settings, workers: Workers
) -> None:
    body, headers = {"prompt": "hi", "model": "another"}, {"Idempotency-Key": "k"}
    first = outage.http.post("/v1/jobs", json=body, headers=headers).json()
    workers.model(outage_settings)
    time.sleep(WORKERS_AGE_S)
    assert outage.http.post("/v1/jobs", json=body).status_code == 404
    assert outage.http.post("/v1/jobs", json=body, headers=headers).json()["id"] == first["id"]


@pytest.mark.anyio
async def test_with_redis_frozen_one_cancel_is_tried(
    own_redis: RedisServer, outage_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Gateway(outage_settings, make_store(outage_settings.files))
    gateway.awaited = {gateway.store.create(new()).id for _ in range(5)}
    own_redis.freeze()
    await gateway.abandon()
    assert len([record for record in caplog.records if record.name == "api.service.dependencies"]) == 1
    own_redis.thaw()
    gateway.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
