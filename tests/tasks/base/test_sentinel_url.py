"""Redis behind Sentinels: the address, and a failover under load."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import trustme
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff

from cli.doctor.redis_server import reachable
from tasks.base.errors import StoreUnavailable
from tasks.base.sentinel_url import SentinelUrl
from tasks.base.settings import Settings, redacted
from tasks.broker.celery_app import make_app
from tasks.records.job import Job, NewJob, Status
from tasks.store.database import async_client, make_client
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.support.peers.flower import flower
from tests.support.peers.sentinels import PASSWORD, SENTINEL_PASSWORD, SERVICE, Sentinels, start_sentinel
from tests.support.peers.tls import EitherWay, TlsProxy, ca_file
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import Workers, wait_until

JOBS = 40
AFTER_LIMIT_S = 120.0
SECRETS = (PASSWORD, SENTINEL_PASSWORD)


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    made = Sentinels(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_an_address_says_everything() -> None:
    url = "redis+sentinel://me:p%40ss@one:1,two/main/3?sentinel_password=other"
    found = SentinelUrl.of(url)
    assert found == SentinelUrl((("one", 1), ("two", 26379)), "main", 3, "me", "p@ss", "other")
    assert found.broker_url() == "sentinel://me:p%40ss@one:1/3;sentinel://me:p%40ss@two:26379/3"
    options = found.finder_options({"socket_timeout": 1, "db": 3})
    assert options.pop("credential_provider").get_credentials() == ("other",)
    assert options == {"socket_timeout": 1}
    assert redacted(url) == "redis+sentinel://me:***@one:1,two/main/3"


def test_an_ipv6_address_keeps_its_brackets() -> None:
    found = SentinelUrl.of("redis+sentinel://[::1]:1,[fd00::2]/main")
    assert found is not None
    assert found.hosts == (("::1", 1), ("fd00::2", 26379))
    assert found.broker_url() == "sentinel://[::1]:1/0;sentinel://[fd00::2]:26379/0"


def test_an_address_without_login() -> None:
    found = SentinelUrl.of("redis+sentinel://one/main")
    assert found == SentinelUrl((("one", 26379),), "main", 0, None, None, None)
    assert SentinelUrl.of("rediss+sentinel://one/main") == replace(found, tls=True)
    assert found.broker_url() == "sentinel://one:26379/0"
    assert SentinelUrl.of("redis://one/0") is None


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one:1",
        "redis+sentinel:///main",
        "redis+sentinel://one:x/main",
        "redis+sentinel://one,,two/main",
        "redis+sentinel://one/main/x",
        "redis+sentinel://one/main?db=1",
    ],
)
def test_half_an_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="redis_url"):
        Settings(_env_file=None, redis_url=url)  # type: ignore[call-arg]


@pytest.mark.stack
def test_a_failover_loses_nothing_that_was_replicated(
    sentinels: Sentinels, workers: Workers, tmp_path: Path
) -> None:
    """Store, both workers, gateway and Flower find the new master by themselves."""
    settings = fast_settings(sentinels.master, redis_url=sentinels.url, flower_port=free_port())
    store = JobStore(settings)
    workers.model(settings)
    workers.io(settings)
    gateway = GatewayProcess(settings, tmp_path)
    tools = ExitStack()
    tools.callback(store.close)
    tools.callback(gateway.stop)
    with tools:
        shown = tools.enter_context(flower(settings))
        _tells_no_secret(settings)
        before = [_submit(store, f"delay=0.2 before {n}") for n in range(JOBS)]
        assert sentinels.replicated()
        sentinels.fail_over()
        after: list[str] = []
        wait_until(lambda: _accepted(store, after), AFTER_LIMIT_S)
        ended = [_wait(store, job_id) for job_id in (*before, *after)]
        assert [job.status for job in ended] == [Status.SUCCEEDED] * len(ended)

        wait_until(lambda: gateway.http.get("/readyz").status_code == 200, AFTER_LIMIT_S)
        answer = gateway.http.post("/v1/jobs", json={"prompt": "x"}, headers={"Prefer": "wait=20"}).json()
        assert answer["status"] == "succeeded"
        wait_until(lambda: answer["id"] in shown(), AFTER_LIMIT_S)

        sentinels.master.start()  # as a replica of its successor
        wait_until(lambda: sentinels.role(sentinels.master) == "slave", AFTER_LIMIT_S)
        last = _submit(store, "after its return")
        assert _wait(store, last).status is Status.SUCCEEDED
        _tells_no_secret(settings)
        logs = "".join(worker.text() for worker in workers.all)
        assert "Connected to sentinel://" in logs
        assert not [secret for secret in SECRETS if secret in logs]


def _tells_no_secret(settings: Settings) -> None:
    """Neither do workers to Flower, nor Flower to whoever looks."""
    app = make_app(settings)
    wait_until(lambda: len(app.control.inspect(timeout=2).ping() or ()) == 2)
    told = {name: getattr(app.control.inspect(timeout=5), name)() for name in ("stats", "conf", "report")}
    app.close()
    assert len(told["stats"]) == 2
    assert {each["broker"]["transport"] for each in told["stats"].values()} == {"sentinel"}
    with httpx.Client(base_url=f"http://127.0.0.1:{settings.flower_port}") as flower_pages:
        names: list[str] = []

        def both_shown() -> bool:
            names[:] = flower_pages.get("/api/workers", params={"refresh": "1"}).json()
            return len(names) == 2

        wait_until(both_shown)
        for page in ("/workers", "/broker", "/api/workers", *(f"/worker/{name}" for name in names)):
            told[page] = flower_pages.get(page).raise_for_status().text
    assert len(names) == 2
    for where, text in told.items():
        assert not [secret for secret in SECRETS if secret in str(text)], where


@pytest.fixture
def unreachable() -> str:
    """The address of two Sentinels of which none answers."""
    hosts = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    return f"redis+sentinel://:{PASSWORD}@{hosts}/{SERVICE}?sentinel_password={SENTINEL_PASSWORD}"


def test_no_error_says_a_password(redis_server: RedisServer, unreachable: str) -> None:
    settings = fast_settings(redis_server, redis_url=unreachable)
    store = JobStore(settings)
    with pytest.raises(StoreUnavailable, match="No master found") as of_store:
        store.get("job_x")
    with pytest.raises(MasterNotFoundError) as of_listener:
        asyncio.run(_ping(unreachable))
    store.close()
    told = "".join("".join(traceback.format_exception(error.value)) for error in (of_store, of_listener))
    told += str(list(reachable(settings)))
    for error in (of_store.value, of_listener.value):
        for host in unreachable.partition("@")[2].partition("/")[0].split(","):
            assert re.search(rf"{re.escape(host)} - ConnectionError\(.Error 111 connecting", f"{error}")
        assert "<" not in f"{error}"  # the client with all its options
    assert not [secret for secret in SECRETS if secret in told]


async def _ping(url: str) -> None:
    async with async_client(url, retry=AsyncRetry(NoBackoff(), 0)) as client:
        await client.ping()


def test_a_sentinel_that_is_away_is_not_asked_again_after_a_pause(
    redis_server: RedisServer, unreachable: str
) -> None:
    """The next one is asked instead: whoever submits a job waits for it."""
    settings = fast_settings(redis_server, redis_url=unreachable)
    client = make_client(unreachable)
    retries = [each.get_retry() for each in client.connection_pool.sentinel_manager.sentinels]
    client.close()
    app = make_app(settings)
    retries.append(app.conf.broker_transport_options["sentinel_kwargs"]["retry"])
    app.close()
    retries += asyncio.run(_retries(unreachable))
    assert [retry.get_retries() for retry in retries] == [0] * 5


async def _retries(url: str) -> list[Any]:
    async with async_client(url) as client:
        return [each.get_retry() for each in client.connection_pool.sentinel_manager.sentinels]


@pytest.fixture
def tls_url(own_redis: RedisServer, ca: trustme.CA, tmp_path: Path) -> Iterator[str]:
    """Of a Sentinel that is reached over TLS and names a server that is.

    It asks the server without, since the one at hand is built so: both ways lead in at the address it names.
    """
    port = free_port()
    with ExitStack() as tools:
        server = TlsProxy(own_redis.port, ca, "127.0.0.1")
        tools.callback(server.stop)
        named = EitherWay(own_redis.port, server.port)
        tools.callback(named.stop)
        process = start_sentinel(tmp_path, port, named.port)
        tools.callback(process.wait, 10)
        tools.callback(process.terminate)
        finder = TlsProxy(port, ca, "localhost")
        tools.callback(finder.stop)
        yield f"rediss+sentinel://localhost:{finder.port}/{SERVICE}"


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.mark.stack
def test_everything_is_reached_over_tls(
    own_redis: RedisServer, tls_url: str, ca: trustme.CA, workers: Workers, tmp_path: Path
) -> None:
    url = f"{tls_url}?ssl_ca_certs={ca_file(ca, tmp_path)}"
    settings = fast_settings(own_redis, redis_url=url, flower_port=free_port())
    store = JobStore(settings)
    wait_until(lambda: _reached(store))
    workers.model(settings)
    workers.io(settings)
    gateway = GatewayProcess(settings, tmp_path)
    with ExitStack() as tools:
        tools.callback(store.close)
        tools.callback(gateway.stop)
        shown = tools.enter_context(flower(settings))
        ended: set[str] = set()

        def heard_of() -> bool:
            """Flower may begin to listen after the first."""
            answer = gateway.http.post("/v1/jobs", json={"prompt": "x"}, headers={"Prefer": "wait=20"}).json()
            assert answer.get("status") == "succeeded", answer
            ended.add(answer["id"])
            return not ended.isdisjoint(shown())

        wait_until(heard_of, AFTER_LIMIT_S)


@pytest.mark.stack
def test_a_certificate_that_nobody_here_knows(own_redis: RedisServer, tls_url: str) -> None:
    store = JobStore(fast_settings(own_redis, redis_url=tls_url))
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        store.get("job_x")
    store.close()


def _reached(store: JobStore) -> bool:
    try:
        return bool(store.db.redis.ping())
    except redis.RedisError:  # the Sentinel is not up yet
        return False


def _submit(store: JobStore, prompt: str) -> str:
    job = store.create(NewJob(request={"prompt": prompt}))
    return job.id


def _accepted(store: JobStore, ids: list[str]) -> bool:
    """Submit until as many were taken again: while there is no master, none is."""
    try:
        ids.append(_submit(store, "after"))
    except StoreUnavailable:
        return False
    return len(ids) == JOBS


def _wait(store: JobStore, job_id: str) -> Job:
    wait_until(lambda: store.get(job_id).terminal, AFTER_LIMIT_S)
    return store.get(job_id)
