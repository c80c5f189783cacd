"""Text on its way from a worker to Redis: whole, in order, and never in the engine's way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import tasks.worker.token_stream
from tasks.base.settings import Settings
from tasks.records.claim import Claim
from tasks.records.job import Status
from tasks.store.jobs import Beat, JobStore, TextChunk
from tasks.worker.token_stream import TokenStream
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import wait_until
from tests.tasks.helpers.records import claimed, queued

pytestmark = pytest.mark.stack

GATEWAY = "gateway"


@dataclass
class Delta:
    text: str
    logprobs: tuple[int, ...] = ()
    drafts: tuple[tuple[int, int, str], ...] = ()


@contextmanager
def streaming(store: JobStore) -> Iterator[TokenStream]:
    stream = TokenStream(store, lambda token: {"token": str(token)})
    stream.start()
    yield stream
    stream.close()


@contextmanager
def listening(store: JobStore) -> Iterator[list[dict[str, Any]]]:
    """Collects the parts that are published, once the block is left."""
    heard: list[dict[str, Any]] = []
    with store.db.redis.pubsub(ignore_subscribe_messages=True) as events:
        events.subscribe(f"{store.db.prefix}tokens:{GATEWAY}")
        assert events.get_message(timeout=2) is None, "the confirmation, which is ignored"
        yield heard
        while message := events.get_message(timeout=0.3):
            heard.append(json.loads(message["data"]))


def running(store: JobStore) -> Claim:
    return claimed(store, queued(store, streaming=True, waiter=GATEWAY))


def kept(store: JobStore, claim: Claim, text: str) -> None:
    """The text for listeners who come later is this, soon."""
    wait_until(
        lambda: store.text_so_far(claim.job_id) == text, report=lambda: store.text_so_far(claim.job_id)
    )


def test_text_arrives_whole_and_says_where_it_belongs(store: JobStore) -> None:
    claim = running(store)
    words = [f"wörd{n} 🌱 " for n in range(500)]
    with listening(store) as heard, streaming(store) as stream:
        put = stream.open(claim)
        for number, word in enumerate(words):
            put(Delta(word, (number,)))
        kept(store, claim, "".join(words))
    assert "".join(part["text"] for part in heard) == "".join(words)
    assert len(heard) < len(words), "what waits goes out together"
    assert {(part["id"], part["attempt"]) for part in heard} == {(claim.job_id, 1)}
    tokens: list[dict[str, str]] = []
    characters = 0
    for part in heard:
        assert (part["at"], part["token"]) == (characters, len(tokens))
        characters += len(part["text"])
        tokens += part["logprobs"]
    assert tokens == [{"token": str(number)} for number in range(500)]
    assert 0 < store.db.redis.pttl(f"{store.db.prefix}text:{claim.job_id}") <= 3_600_000


def test_streams_of_many_jobs_do_not_mix(store: JobStore) -> None:
    claims = [running(store) for _ in range(20)]
    with streaming(store) as stream:
        puts = [stream.open(claim) for claim in claims]
        for step in range(50):
            for number, put in enumerate(puts):
                put(Delta(f"{number}.{step} "))
        for number, claim in enumerate(claims):
            kept(store, claim, "".join(f"{number}.{step} " for step in range(50)))


def test_a_part_sent_twice_counts_once(store: JobStore) -> None:
    claim = running(store)
    part = TextChunk(claim.job_id, claim.fencing_token, 0, "äb", "{}")
    further = TextChunk(claim.job_id, claim.fencing_token, 3, "c", "{}")
    with listening(store) as heard:
        assert store.append_text([part, further]) == [True, True]
        assert store.append_text([part, further]) == [True, True]
    assert len(heard) == 2
    assert store.text_so_far(claim.job_id) == "äbc"


def test_a_part_after_a_hole_is_refused(store: JobStore) -> None:
    claim = running(store)
    assert store.append_text([TextChunk(claim.job_id, claim.fencing_token, 5, "x", "{}")]) == [False]
    assert store.text_so_far(claim.job_id) == ""


def test_a_worker_that_lost_its_job_is_not_heard(store: JobStore) -> None:
    first = running(store)
    with streaming(store) as stream:
        put = stream.open(first)
        put(Delta("old "))
        kept(store, first, "old ")
        assert store.requeue(first.job_id, first.fencing_token)
        second = claimed(store, first.job_id, token="another")
        assert store.text_so_far(first.job_id) == "", "a new attempt begins anew"
        with listening(store) as heard:
            put(Delta("late "))
            stream.open(second)(Delta("new "))
            kept(store, second, "new ")
        assert [part["text"] for part in heard] == ["new "]


def test_after_a_flush_redis_has_it_all(store: JobStore) -> None:
    claim = running(store)
    with streaming(store) as stream:
        put = stream.open(claim)
        for number in range(5):
            for _ in range(300):
                put(Delta("word "))
            stream.flush()
            assert store.text_so_far(claim.job_id).count("word ") == 300 * (number + 1)


def test_a_flush_waits_a_second_for_a_frozen_server(own_redis: RedisServer) -> None:
    store = JobStore(fast_settings(own_redis, redis_url=own_redis.within(6)))
    claim = running(store)
    with streaming(store) as stream:
        own_redis.freeze()
        stream.open(claim)(Delta("a"))
        began = time.monotonic()
        stream.flush()
        assert time.monotonic() - began < 4, "one that waits for the server takes 6 s"
        own_redis.thaw()
        kept(store, claim, "a")
    store.close()


def test_an_ended_job_keeps_no_text_beside_its_record(store: JobStore) -> None:
    claim = running(store)
    with streaming(store) as stream:
        put = stream.open(claim)
        put(Delta("abc"))
        kept(store, claim, "abc")
        assert store.finish(claim.job_id, claim.fencing_token, Status.SUCCEEDED, result={"text": "abcdef"})
        put(Delta("def"))
    assert not store.db.redis.exists(f"{store.db.prefix}text:{claim.job_id}")


def test_the_heartbeat_says_that_somebody_listens(store: JobStore) -> None:
    claim = claimed(store, queued(store))
    pair = (claim.job_id, claim.fencing_token)
    assert not claim.streaming
    assert store.heartbeat([pair]) == [Beat.OK]
    assert store.watch(store.get(claim.job_id), GATEWAY).status is Status.RUNNING
    assert store.heartbeat([pair]) == [Beat.OK], "it waits for the end alone"
    store.watch(store.get(claim.job_id), GATEWAY, streaming=True)
    assert store.heartbeat([pair]) == [Beat.STREAMING]
    store.cancel(claim.job_id)
    assert store.heartbeat([pair]) == [Beat.CANCEL]


def test_a_job_watched_in_the_queue_is_claimed_as_such(store: JobStore) -> None:
    job_id = queued(store)
    store.watch(store.get(job_id), GATEWAY, streaming=True)
    assert claimed(store, job_id).streaming


def test_a_frozen_server_blocks_nobody_and_loses_nothing(own_redis: RedisServer) -> None:
    store = JobStore(fast_settings(own_redis, redis_url=own_redis.within(6)))
    claim = running(store)
    with streaming(store) as stream:
        put = stream.open(claim)
        put(Delta("a"))
        kept(store, claim, "a")
        own_redis.freeze()
        began = time.monotonic()
        for _ in range(1000):
            put(Delta("b"))
        assert time.monotonic() - began < 5, "one that waits for the server takes 6 s"
        time.sleep(6.5)
        own_redis.thaw()
        kept(store, claim, "a" + 1000 * "b")
    store.close()


def test_what_waits_too_long_is_dropped_with_all_that_follows(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole in the text would be worse than its end."""
    monkeypatch.setattr(tasks.worker.token_stream, "MAX_WAITING", 100)
    store = JobStore(fast_settings(own_redis, redis_url=own_redis.within(1)))
    claim, other = running(store), running(store)
    with streaming(store) as stream:
        put = stream.open(claim)
        put(Delta("a"))
        kept(store, claim, "a")
        own_redis.freeze()
        for number in range(1000):
            put(Delta(f"{number} "))
        own_redis.thaw()
        later = stream.open(other)
        wait_until(lambda: stream.waiting == 0)
        put(Delta("never"))
        later(Delta("fine"))
        kept(store, other, "fine")
    whole = "a" + "".join(f"{number} " for number in range(1000))
    assert whole.startswith(store.text_so_far(claim.job_id))
    assert len(store.text_so_far(claim.job_id)) < len(whole)
    store.close()


def test_closing_does_not_wait_for_a_frozen_server(own_redis: RedisServer) -> None:
    store = JobStore(fast_settings(own_redis, redis_url=own_redis.within(1)))
    claim = running(store)
    stream = TokenStream(store, lambda token: {"token": token})
    stream.start()
    own_redis.freeze()
    stream.open(claim)(Delta("a"))
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 10
    own_redis.thaw()
    store.close()


def test_records_of_online_jobs_are_kept_for_their_own_time(store: JobStore, settings: Settings) -> None:
    usual, short = claimed(store, queued(store)), claimed(store, queued(store, keep_s=60.0))
    for claim in (usual, short):
        assert store.finish(claim.job_id, claim.fencing_token, Status.SUCCEEDED, result={"text": ""})
    seconds = [
        store.db.redis.zscore(f"{store.db.prefix}expiry", claim.job_id) / 1000 - time.time()
        for claim in (usual, short)
    ]
    assert seconds == pytest.approx([settings.result_ttl_s, 60], abs=5)


def test_drafted_parts_say_where_they_are_in_the_message(store: JobStore) -> None:
    claim = running(store)
    with listening(store) as heard, streaming(store) as stream:
        put = stream.open(claim)
        for _ in range(50):
            put(Delta("wörd next ", (), ((0, 4, "lookup"), (5, 9, "medusa"))))
        kept(store, claim, "wörd next " * 50)
    drafted = [(part["text"][start:end], name) for part in heard for start, end, name in part["drafts"]]
    assert drafted == [("wörd", "lookup"), ("next", "medusa")] * 50
