"""The messages and events that the Lua scripts send are those that Celery would send."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery

from tasks.base.queue_names import GENERATE, WINDOW, WINDOWS, queue_of, sent_channel
from tasks.base.settings import Settings
from tasks.broker.celery_app import make_app
from tasks.records.job import NewJob, Priority
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry
from tests.support.servers import RedisServer, fast_settings
from tests.tasks.helpers.records import messages, new, sent_ids
from tests.tasks.helpers.windows import Windows

MODEL = "a b@é:/%~._-"
PROMPTS = ['What\'s "up"', "", "é" * 1234]
OUR_OWN = {"origin", "hostname", "reply_to", "delivery_tag", "body_encoding"}  # of each sender, or message
UNREAD = {"pid", "clock", "utcoffset"}  # of events: of a client's, Celery reads none; times are of Redis


@pytest.fixture(params=[0, 3])
def store(redis_server: RedisServer, request: pytest.FixtureRequest) -> Iterator[JobStore]:
    """On another database as well, whose number is in the name of a channel."""
    settings = fast_settings(redis_server, redis_url=redis_server.url.removesuffix("0") + str(request.param))
    store = JobStore(settings)
    Registry(store.db, 60).announce_models([MODEL], 60)
    yield store
    store.close()


@pytest.fixture
def app(store: JobStore) -> Iterator[Celery]:
    with make_app(store.db.settings) as app:
        app.conf.task_send_sent_event = True
        yield app


def by_celery(app: Celery, work_id: str, shown: str, queue: str, task: str = GENERATE) -> None:
    app.amqp.queues.select_add(app.amqp.queues.add(queue))
    app.send_task(
        task,
        args=(work_id,),
        task_id=work_id,
        queue=queue,
        argsrepr=shown,
        kwargsrepr="{}",
        ignore_result=True,
    )


def body_of(message: dict[str, Any]) -> Any:
    encoded = message["properties"].get("body_encoding") == "base64"
    return json.loads(base64.b64decode(message["body"]) if encoded else message["body"])


def common(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in OUR_OWN | UNREAD}


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("model", [None, MODEL])
def test_both_are_as_celery_sends_them(
    store: JobStore, app: Celery, priority: Priority, model: str | None
) -> None:
    queue = queue_of(priority, model or "")
    events = store.db.redis.pubsub(ignore_subscribe_messages=True)
    events.psubscribe("*.celeryev/*")
    events.get_message(timeout=1)

    def event() -> tuple[str, dict[str, Any]]:
        heard = events.get_message(timeout=5)
        return heard["channel"], json.loads(heard["data"])

    for prompt in PROMPTS:
        job = store.create(new(prompt, priority=priority, model=model))
        ours_event = event()
        [ours] = messages(store, priority, model or "")
        shown = ours["headers"]["argsrepr"]
        by_celery(app, job.id, shown, queue)
        their_event = event()
        theirs = messages(store, priority, model or "")[1]
        store.db.redis.delete(f"{store.db.prefix}{queue}")

        assert shown == repr(f"{len(prompt):,} chars")
        assert body_of(ours) == body_of(theirs) == [[job.id], {}, body_of(theirs)[2]]
        assert common(ours["headers"]) == common(theirs["headers"])
        assert {"argsrepr", "kwargsrepr", *common(ours["properties"])} == set(common(theirs["properties"]))
        assert ours["properties"] == {
            "delivery_tag": ours["properties"]["delivery_tag"],
            **{name: theirs["properties"][name] for name in common(ours["properties"])},
        }
        for name in ("content-type", "content-encoding"):
            assert ours[name] == theirs[name]

        assert ours_event[0] == their_event[0]
        assert ours_event[1]["properties"]["delivery_info"] == their_event[1]["properties"]["delivery_info"]
        told, expected = body_of(ours_event[1]), body_of(their_event[1])
        assert abs(told.pop("timestamp") - expected.pop("timestamp")) < 60
        assert common(told) == common(expected)
    events.close()


def test_a_window_is_sent_as_celery_would(settings: Settings) -> None:
    own = Windows.begun(settings)
    [window_id] = own.send([1, 2], model_queue=MODEL)
    [ours] = own.messages(quote(MODEL, safe=""))
    with make_app(settings) as app:
        queue = queue_of(WINDOWS, MODEL)
        by_celery(app, window_id, ours["headers"]["argsrepr"], queue, WINDOW)
    theirs = own.messages(quote(MODEL, safe=""))[1]
    assert body_of(ours) == body_of(theirs)
    assert common(ours["headers"]) == common(theirs["headers"])
    assert ours["properties"]["delivery_info"] == theirs["properties"]["delivery_info"]
    own.store.close()


def test_each_message_of_a_job_has_its_own_tag(store: JobStore) -> None:
    """By which kombu knows what it has taken and not acknowledged."""
    job = store.create(new())
    for attempt in range(3):
        claim = store.claim(job.id, "w", f"token {attempt}")
        store.requeue(job.id, claim.fencing_token)  # type: ignore[union-attr]
    assert sent_ids(store) == [job.id] * 4
    assert len({message["properties"]["delivery_tag"] for message in messages(store)}) == 4


def test_a_list_that_takes_nothing_leaves_a_whole_job(store: JobStore) -> None:
    prefix = store.db.prefix
    broken = prefix + queue_of(Priority.INTERACTIVE)
    store.db.redis.set(broken, "not a list")
    jobs = store.create_all(NewJob({"prompt": "x"}, idempotency_key=None), [{"seed": 1}, {"seed": 2}])
    store.db.redis.delete(broken)
    ids = {job.id for job in jobs}
    assert set(store.db.redis.zrange(f"{prefix}pending:interactive", 0, -1)) == ids
    assert store.db.redis.hget(f"{prefix}interactive_outstanding", "") == "2"
    patient = JobStore(store.db.settings.model_copy(update={"lease_ms": 1}))
    patient.reconcile()
    assert set(sent_ids(store)) == ids
    patient.close()


def test_the_channel_has_the_prefix_and_the_database(settings: Settings) -> None:
    assert sent_channel(settings.key_prefix, 2) == f"{settings.key_prefix}/2.celeryev/task.sent"
