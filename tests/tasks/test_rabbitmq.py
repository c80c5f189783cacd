"""RabbitMQ as the broker: records stay in Redis, and what the broker loses is sent again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.errors import PublishFailed
from tasks.job import NewJob, Priority, Status
from tasks.publish import Publisher
from tasks.queues import add_queue, list_key, make_app, over_redis, queue_of
from tasks.registry import Registry, WorkerInfo
from tasks.settings import Settings
from tasks.store import JobStore, Unsent
from tests.flower import flower
from tests.rabbit import RabbitServer, rabbit_missing
from tests.servers import RedisServer, fast_settings, free_port
from tests.workers import Workers, wait_until

LIMIT_S = 30.0
QUEUES_OF_ALL = [(priority, "") for priority in Priority]  # of no model in particular

needs_rabbit = pytest.mark.skipif(bool(rabbit_missing()), reason=rabbit_missing() or "it is here")


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    server = RabbitServer(tmp_path_factory.mktemp("rabbit"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def rabbit_settings(redis_server: RedisServer, rabbit: RabbitServer) -> Settings:
    return fast_settings(redis_server, broker_url=rabbit.url, flower_port=free_port())


@pytest.fixture
def own_store(rabbit_settings: Settings) -> Iterator[JobStore]:
    store = JobStore(rabbit_settings)
    yield store
    store.close()


@pytest.fixture
def sender(rabbit_settings: Settings) -> Iterator[Publisher]:
    _purge(rabbit_settings)
    publisher = Publisher.connect(rabbit_settings)
    yield publisher
    publisher.close()


def test_a_broker_that_is_away_fails_in_time_and_calls_no_message_lost(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"broker_url": f"amqp://127.0.0.1:{free_port()}//"})
    assert not over_redis(make_app(nowhere))
    publisher = Publisher.connect(nowhere)
    with pytest.raises(PublishFailed, match="job_1"):
        publisher.publish("job_1", Priority.BULK, "x")
    assert publisher.waiting() == dict.fromkeys(QUEUES_OF_ALL, 1)
    publisher.close()


def test_a_full_queue_elsewhere_keeps_messages_from_being_sent_again(
    settings: Settings, store: JobStore
) -> None:
    """The list in Redis is empty in both cases."""
    patient = JobStore(settings.model_copy(update={"lease_ms": 1}))
    job, _ = store.create(NewJob(request={"prompt": "x"}))
    sent: list[Unsent] = []

    def sent_again() -> bool:
        sent.extend(patient.reconcile(dict.fromkeys(QUEUES_OF_ALL, 0)).unsent)
        return bool(sent)

    wait_until(sent_again)
    assert sent[0].job_id == job.id
    assert patient.reconcile(dict.fromkeys(QUEUES_OF_ALL, 1)).unsent == ()
    patient.close()


@needs_rabbit
@pytest.mark.stack
def test_jobs_run_through_it_and_their_records_stay_in_redis(
    rabbit_settings: Settings, own_store: JobStore, sender: Publisher, workers: Workers
) -> None:
    jobs = [_submit(own_store, sender, priority) for priority in Priority for _ in range(3)]
    assert sender.waiting() == dict.fromkeys(QUEUES_OF_ALL, 3)
    assert not own_store.redis.exists(*(list_key(rabbit_settings, priority) for priority in Priority))
    with flower(rabbit_settings) as shown:
        workers.model(rabbit_settings)
        for job_id in jobs:
            _wait(own_store, job_id)
        last = _submit(own_store, sender, Priority.INTERACTIVE)
        wait_until(lambda: last in shown(), LIMIT_S)
    assert sender.waiting() == dict.fromkeys(QUEUES_OF_ALL, 0)


@needs_rabbit
@pytest.mark.stack
def test_what_it_loses_is_sent_again(
    rabbit_settings: Settings, own_store: JobStore, sender: Publisher, workers: Workers
) -> None:
    job_id = _submit(own_store, sender)
    _purge(rabbit_settings)
    workers.io(rabbit_settings)
    workers.model(rabbit_settings)
    _wait(own_store, job_id)


@needs_rabbit
@pytest.mark.stack
def test_a_restart_of_it_loses_no_job(
    rabbit: RabbitServer, rabbit_settings: Settings, own_store: JobStore, sender: Publisher, workers: Workers
) -> None:
    workers.io(rabbit_settings)
    workers.model(rabbit_settings)
    jobs = [_submit(own_store, sender, prompt="delay=0.5 x") for _ in range(8)]
    rabbit.kill()
    with pytest.raises(PublishFailed):
        sender.publish(jobs[0], Priority.BULK, "x")
    jobs.append(own_store.create(NewJob(request={"prompt": "x"}))[0].id)
    rabbit.start()
    for job_id in jobs:
        _wait(own_store, job_id)
    _wait(own_store, _submit(own_store, sender))


@needs_rabbit
@pytest.mark.stack
def test_each_model_has_its_own_queues_in_it(
    rabbit_settings: Settings, own_store: JobStore, sender: Publisher, workers: Workers
) -> None:
    """What names a model runs there alone, wherever its message was; it waits for it, and is not lost."""
    one, two = f"one-{free_port()}", f"org/two ü {free_port()}"  # the server keeps queues from test to test
    workers.io(rabbit_settings)
    too_early = _submit(own_store, sender, model=two)
    assert sender.waiting(["", two]) == {(p, lane): 0 for p in Priority for lane in ("", two)} | {
        (Priority.BULK, ""): 1
    }, "a model that nobody has served yet has no queue"
    registry = Registry(own_store, rabbit_settings.worker_ttl_s)
    registry.refresh(WorkerInfo("x", two, 2048, 1, pid=1, host="h", started_at=0.0))
    registry.leave("x")
    first = workers.model(rabbit_settings, env={"SCRIPTED_MODEL": one})
    wait_until(lambda: sender.waiting([two]) == {(p, two): p is Priority.BULK for p in Priority}, LIMIT_S)
    second = workers.model(rabbit_settings, env={"SCRIPTED_MODEL": two})
    _wait(own_store, too_early)
    jobs = {too_early: second} | {
        _submit(own_store, sender, priority, model=model): worker
        for model, worker in ((one, first), (two, second))
        for priority in Priority
        for _ in range(3)
    }
    for job_id, worker in jobs.items():
        _wait(own_store, job_id)
        assert str(own_store.get(job_id).worker).endswith(f":{worker.process.pid}")

    assert second.terminate() == 0
    lost = _submit(own_store, sender, model=two)
    assert sender.waiting([two]) == {(Priority.INTERACTIVE, two): 0, (Priority.BULK, two): 1}
    _wait(own_store, _submit(own_store, sender, model=one))
    assert own_store.get(lost).status is Status.QUEUED
    _purge(rabbit_settings, queue_of(Priority.BULK, two))
    kept = _submit(own_store, sender, Priority.INTERACTIVE, model=two)
    workers.model(rabbit_settings, env={"SCRIPTED_MODEL": two})
    for job_id in (lost, kept):
        _wait(own_store, job_id)
    waiting = sender.waiting(["", one, two])
    assert waiting is not None
    assert set(waiting.values()) == {0}


@needs_rabbit
def test_a_frozen_one_is_given_up_in_time(rabbit: RabbitServer, sender: Publisher) -> None:
    sender.publish("job_1", Priority.BULK, "x")
    rabbit.freeze()
    try:
        with pytest.raises(PublishFailed, match="job_2"):
            sender.publish("job_2", Priority.BULK, "x")
        assert sender.waiting() == dict.fromkeys(QUEUES_OF_ALL, 1)
    finally:
        rabbit.thaw()
    sender.publish("job_3", Priority.BULK, "x")


def _submit(
    store: JobStore,
    sender: Publisher,
    priority: Priority = Priority.BULK,
    prompt: str = "x",
    model: str | None = None,
) -> str:
    job, _ = store.create(NewJob(request={"prompt": prompt}, priority=priority, model=model))
    sender.try_all([Unsent.of(job)])
    return job.id


def _wait(store: JobStore, job_id: str) -> None:
    wait_until(lambda: store.get(job_id).status is Status.SUCCEEDED, LIMIT_S)


def _purge(settings: Settings, *more: str) -> None:
    """Empty the queues of no model in particular, and these."""
    app = make_app(settings)
    for name in more:
        add_queue(app, name)
    with app.connection_for_write() as connection:
        for each in app.amqp.queues.values():
            bound = each(connection.default_channel)
            bound.declare()
            bound.purge()
    app.close()
