"""Connections that end, on a real server, and the leases of who had them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from tasks.base.settings import Settings
from tasks.io import reconcile_once
from tasks.records.job import Status
from tasks.recovery.holder_watch import HolderWatch
from tasks.store.jobs import Beat, JobStore, new_claim_id
from tasks.store.windows import WindowStore
from tasks.store.workers import NOT_LISTED, Registry, WorkerInfo
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import WAIT_S, wait_until
from tests.tasks.helpers.records import WORKER, claimed, queued
from tests.tasks.helpers.windows import Windows

pytestmark = pytest.mark.slow

LEASE_MS = 3000
ROUNDS = 9  # looks, of which the seventh finds who was gone at the first


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    """A worker is lost after 1 s, on a server that has been there for 3 s."""
    settings = fast_settings(redis_server, lease_ms=LEASE_MS)
    with redis.Redis(port=redis_server.port) as client:
        wait_until(lambda: client.info("server")["uptime_in_seconds"] > LEASE_MS / 1000)
    return settings


class Holder:
    """The part of a model worker that holds leases."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.store = JobStore(settings, name=name)
        self.registry = Registry(self.store.db, 60)
        self._info = WorkerInfo(name, "m", 8, 1, pid=1, host="h", started_at=0.0)

    def beat(self) -> None:
        self.registry.refresh(self._info)

    def is_killed(self) -> None:
        self.store.db.redis.connection_pool.disconnect()


Begin = Callable[[str], Holder]


@pytest.fixture
def begin(settings: Settings) -> Iterator[Begin]:
    holders: list[Holder] = []

    def begun(name: str) -> Holder:
        holder = Holder(settings, name)
        holders.append(holder)
        holder.beat()
        return holder

    yield begun
    for holder in holders:
        holder.store.close()


def leases(store: JobStore, kind: str = "leases") -> dict[str, float]:
    return dict(store.db.redis.zrange(f"{store.db.prefix}{kind}", 0, -1, withscores=True))


def ended_by(watch: HolderWatch, meanwhile: Callable[[], object] = lambda: None, awaited: int = 0) -> int:
    """The leases that ended while it looked often enough, and until so many had: it may be held up."""
    ended = looks = 0
    give_up = time.monotonic() + WAIT_S
    while looks < ROUNDS or (ended < awaited and time.monotonic() < give_up):
        ended += watch.look()
        looks += 1
        meanwhile()
        time.sleep(watch.interval_s)
    return ended


def test_work_of_a_killed_worker_is_queued_again(
    store: JobStore, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    killed, lives = begin("h:1:a"), begin("h:1:b")  # the other has its id
    lost, kept = queued(store), queued(store)
    claim, other = claimed(killed.store, lost), claimed(lives.store, kept)
    killed.is_killed()
    assert ended_by(HolderWatch(store.db), awaited=1) == 1
    assert leases(store)[lost] == 0
    assert "h:1:a has no connection any more: 1 of its leases were ended" in caplog.text
    reconcile_once(store)
    assert (store.get(lost).status, store.get(kept).status) == (Status.QUEUED, Status.RUNNING)
    assert not store.finish(lost, claim.fencing_token, Status.SUCCEEDED)
    assert store.heartbeat([(kept, other.fencing_token)]) == [Beat.OK]
    assert store.db.redis.hkeys(f"{store.db.prefix}holders") == ["h:1:b"]


def test_windows_of_a_killed_worker_are_queued_again(settings: Settings, begin: Begin) -> None:
    own = Windows.begun(settings)
    killed = begin("h:1:a")
    [window_id] = own.send([1, 2])
    lost = WindowStore(killed.store.db).claim(window_id, WORKER, new_claim_id())
    assert lost is not None
    killed.is_killed()
    assert ended_by(HolderWatch(own.store.db), awaited=1) == 1
    assert leases(own.store, "window_leases") == {window_id: 0}
    reconcile_once(own.store)
    assert own.claim(window_id).fencing_token > lost.fencing_token
    own.store.close()


def test_one_that_beats_keeps_its_leases_whatever_redis_lists(
    store: JobStore, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = begin("h:1:a")
    job_id = queued(store)
    claimed(holder.store, job_id)
    watch = HolderWatch(store.db)
    monkeypatch.setattr("tasks.recovery.holder_watch.listed_names", lambda _: frozenset())
    assert ended_by(watch, holder.beat) == 0
    assert leases(store)[job_id] > 0
    assert ended_by(watch, awaited=1) == 1


def test_one_that_is_held_up_keeps_its_leases_while_its_connections_stand(
    store: JobStore, begin: Begin
) -> None:
    claimed(begin("h:1:a").store, queued(store))
    assert ended_by(HolderWatch(store.db)) == 0


def test_one_that_was_back_in_between_keeps_its_leases(store: JobStore, begin: Begin) -> None:
    """As the script finds, whoever looked before and was held up since."""
    holder = begin("h:1:a")
    claimed(holder.store, queued(store))
    holder.beat()
    assert store.db.scripts.run("queues/expire_leases", "h:1:a", 1) == 0
    assert store.db.scripts.run("queues/expire_leases", "h:1:a", 2) == 1
    assert store.db.scripts.run("queues/expire_leases", "h:1:a", 2) == 0  # a repeated call


def test_one_that_left_is_not_missed(store: JobStore, begin: Begin) -> None:
    holder = begin("h:1:a")
    holder.registry.leave("h:1:a")
    assert store.db.redis.hgetall(f"{store.db.prefix}holders") == {}


@pytest.fixture
def without_list(settings: Settings, redis_server: RedisServer) -> Iterator[Settings]:
    """Of a user who may not ask for the connections."""
    with redis.Redis(port=redis_server.port) as client:
        rules = ("on", ">pw", "~*", "&*", "+@all", "-@admin")
        client.execute_command("ACL", "SETUSER", "narrow", *rules)
        url = redis_server.url.replace("redis://", "redis://narrow:pw@")
        yield settings.model_copy(update={"redis_url": url})
        client.execute_command("ACL", "DELUSER", "narrow")


def test_where_the_list_is_refused_leases_run_out_by_themselves(
    without_list: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    holder = Holder(without_list, "h:1:a")
    job_id = queued(holder.store)
    claimed(holder.store, job_id)
    holder.beat()
    holder.beat()
    holders = f"{without_list.key_prefix}holders"
    assert holder.store.db.redis.hgetall(holders) == {}
    holder.store.db.redis.hset(holders, "h:2:b", 1)  # which may ask, as the io worker may not
    assert ended_by(HolderWatch(holder.store.db)) == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages[0] == NOT_LISTED
    assert "client|list" in caplog.messages[1]
    holder.store.close()


def test_a_name_that_redis_refuses_keeps_no_worker_away(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    holder = Holder(settings, "two words")
    holder.beat()
    assert caplog.messages == [NOT_LISTED]
    holder.store.close()
