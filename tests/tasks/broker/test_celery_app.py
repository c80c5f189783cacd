"""The order of the queues, and what Flower will show of a message."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tasks.base.errors import PublishFailed
from tasks.base.queue_names import IO_QUEUE, QUEUES, list_key, queue_of
from tasks.base.settings import Settings
from tasks.broker.celery_app import IN_A_ROW, InteractiveFirst, make_app
from tasks.broker.publisher import MOST_AT_ONCE, Outbox, Publisher
from tasks.records.claim import QueueMessage
from tasks.records.job import PREVIEW_CHARS, NewJob, Priority, preview
from tasks.store.jobs import JobStore
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import wait_until


def test_interactive_is_polled_first() -> None:
    bulk, interactive = QUEUES[Priority.BULK], QUEUES[Priority.INTERACTIVE]
    cycle = InteractiveFirst()
    for names in ([bulk, interactive], [interactive, bulk], [IO_QUEUE, bulk, interactive]):
        cycle.update(names)
        for _ in range(2):
            assert list(cycle.consume(len(names)))[:2] == [interactive, bulk]
            cycle.rotate(interactive)


def test_after_many_interactive_messages_a_bulk_one_is_polled_first() -> None:
    bulk, interactive = QUEUES[Priority.BULK], QUEUES[Priority.INTERACTIVE]
    cycle = InteractiveFirst()
    cycle.update([bulk, interactive])
    for _ in range(2):
        for _ in range(IN_A_ROW):
            assert list(cycle.consume(2)) == [interactive, bulk]
            cycle.rotate(interactive)
        assert list(cycle.consume(2)) == [bulk, interactive]
        cycle.rotate(interactive)
        assert list(cycle.consume(2)) == [bulk, interactive], "until there was one"
        cycle.rotate(bulk)


def test_models_take_turns_behind_which_no_bulk_job_overtakes_an_interactive_one() -> None:
    names = [queue_of(priority, model) for priority in Priority for model in ("", "a", "b")]
    interactive = [name for name in names if "interactive" in name]
    cycle = InteractiveFirst()
    cycle.update(names[::-1])
    used = []
    for _ in range(6):
        order = list(cycle.consume(len(names)))
        assert set(order[:3]) == set(interactive)
        used.append(order[0])
        cycle.rotate(order[0])
    assert sorted(used[:3]) == sorted(used[3:]) == sorted(interactive), "each has its turn"


def test_no_two_models_share_a_queue() -> None:
    models = ["", "a", "A", "a.b", "a b", "a%20b", "a,b", "é", "\n", "x" * 300, "x" * 299 + "y", "é" * 100]
    names = {queue_of(priority, model) for priority in Priority for model in models}
    assert len(names) == 2 * len(models)
    for name in names:
        assert name.isascii()
        assert not set(name) & set(" ,\n"), "Celery's -Q takes names between commas"
    assert queue_of(Priority.BULK, "smollm2.q4_1") == "medusaq.bulk.smollm2.q4_1"


def test_message_shows_the_prompt_and_carries_the_job_id(
    settings: Settings, store: JobStore, publisher: Publisher
) -> None:
    publisher.publish("job_1", Priority.BULK, "What is\u2026")
    message = json.loads(store.db.redis.lindex(list_key(settings, Priority.BULK), 0))
    headers = message["headers"]
    assert (headers["id"], headers["task"]) == ("job_1", "medusaq.generate")
    assert headers["argsrepr"] == repr("What is\u2026")
    assert message["content-type"] == "application/json"


def test_publish_without_a_server_fails_in_time(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{free_port()}/0"})
    publisher = Publisher.connect(nowhere)
    with pytest.raises(PublishFailed, match="job_1"):
        publisher.publish("job_1", Priority.BULK, "x")
    publisher.close()


def test_messages_of_one_trip_are_those_sent_one_by_one(
    settings: Settings, store: JobStore, publisher: Publisher
) -> None:
    for n in (1, 2):
        publisher.publish(f"job_{n}", Priority.BULK, f"prompt {n}")
    alone = _queued(store, settings)
    store.db.redis.delete(list_key(settings, Priority.BULK))
    publisher.publish_all([QueueMessage(f"job_{n}", Priority.BULK, f"prompt {n}") for n in (1, 2)])
    together = _queued(store, settings)
    for message in (*alone, *together):
        del message["properties"]["delivery_tag"], message["headers"]["origin"]
    assert alone == together
    assert [message["headers"]["id"] for message in together] == ["job_1", "job_2"]


def test_publishing_goes_on_when_redis_was_restarted(own_redis: RedisServer) -> None:
    settings = fast_settings(own_redis)
    publisher = Publisher.connect(settings)
    publisher.publish("job_1", Priority.BULK, "x")
    own_redis.stop()
    with pytest.raises(PublishFailed, match="job_2"):
        publisher.publish("job_2", Priority.BULK, "x")
    own_redis.start()
    publisher.publish("job_3", Priority.BULK, "x")
    publisher.close()
    store = JobStore(settings)
    assert _queued(store, settings)[-1]["headers"]["id"] == "job_3"
    store.close()


def test_outbox_sends_all_that_waits_before_it_closes(
    settings: Settings, store: JobStore, publisher: Publisher
) -> None:
    jobs = [store.create(NewJob(request={"prompt": f"n{n}"}))[0] for n in range(3 * MOST_AT_ONCE)]
    outbox = Outbox(publisher)
    for job in jobs:
        outbox.put(job)
    outbox.close()
    sent = [message["headers"]["id"] for message in _queued(store, settings, Priority.INTERACTIVE)]
    assert sent == [job.id for job in jobs]


def test_outbox_leaves_what_cannot_be_sent_to_the_reconciler(
    settings: Settings, store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{free_port()}/0"})
    publisher = Publisher.connect(nowhere)
    outbox = Outbox(publisher)
    job, _ = store.create(NewJob(request={"prompt": "x"}))
    outbox.put(job)
    outbox.close()
    publisher.close()
    assert f"({job.id})" in caplog.text
    assert "the reconciler will send them" in caplog.text


def test_outbox_goes_on_after_a_message_that_no_queue_takes(
    settings: Settings, store: JobStore, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    job, _ = store.create(NewJob(request={"prompt": "x"}))
    outbox = Outbox(publisher)
    outbox.put(replace(job, priority="neither"))  # type: ignore[arg-type]  # what a fault of ours could bring
    wait_until(lambda: "could not be sent; the reconciler" in caplog.text)
    outbox.put(job)
    outbox.close()
    (sent,) = _queued(store, settings, Priority.INTERACTIVE)
    assert sent["headers"]["id"] == job.id


def test_outbox_that_closes_gives_up_at_the_first_failure(store: JobStore, settings: Settings) -> None:
    nowhere = settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{free_port()}/0"})
    publisher = _Counting(make_app(nowhere))
    outbox = Outbox(publisher)
    publisher.begin = outbox._closing
    job, _ = store.create(NewJob(request={"prompt": "x"}))
    for _ in range(10 * MOST_AT_ONCE):
        outbox.put(job)
    outbox.close()
    publisher.close()
    assert publisher.tries == 1


class _Counting(Publisher):
    """Counts what it tries, none of it before `begin` is set."""

    tries = 0
    begin: threading.Event

    def publish_all(self, messages: Sequence[QueueMessage]) -> None:
        assert self.begin.wait(30)
        self.tries += 1
        super().publish_all(messages)


def _queued(
    store: JobStore, settings: Settings, priority: Priority = Priority.BULK
) -> list[dict[str, dict[str, Any]]]:
    """The waiting messages, oldest first."""
    return [json.loads(text) for text in store.db.redis.lrange(list_key(settings, priority), 0, -1)[::-1]]


def test_preview() -> None:
    assert preview({"prompt": " two\n lines "}) == "two lines"
    assert preview({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}) == "b"
    long = preview({"prompt": "x" * 1000})
    assert len(long) == PREVIEW_CHARS
    assert long.endswith("\u2026")
