"""That a promise which is not kept is seen: with a gateway alone, whose work ends only as a test says."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tasks.base.settings import Settings
from tasks.records.batch import BatchStatus
from tasks.records.job import Status
from tasks.store.jobs import JobStore
from tests.chaos.clients.client import Client
from tests.chaos.clients.following import Follower
from tests.chaos.clients.hooks import Hooks
from tests.chaos.clients.load import Expected, Load
from tests.chaos.judging.verdict import Ends, Tally, repeats, verdict
from tests.support.peers.receivers import LOOPBACK, receiving
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.records import claimed

pytestmark = pytest.mark.stack


class HearsLate(Load):
    """late: a job that is noted only after it was looked for."""

    late: tuple[str, Expected] | None = None

    @property
    def busy(self) -> bool:
        if self.late:
            self.accepted.jobs.update([self.late])
        return self.late is not None


@pytest.fixture(scope="module")
def settings(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Those of a gateway that runs."""
    settings = fast_settings(redis_server, port=free_port(), webhook_allow=LOOPBACK)
    workers = Workers(tmp_path_factory.mktemp("gateway"))
    gateway = workers.gateway(settings)

    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{settings.port}/healthz").is_success
        except httpx.TransportError:
            return False

    try:
        wait_until(answers, report=gateway.text)
        yield settings
    finally:
        workers.close()


@pytest.fixture
def load(settings: Settings, store: JobStore) -> Iterator[HearsLate]:
    """On a Redis that holds nothing else."""
    for key in store.db.redis.scan_iter(f"{store.db.prefix}*"):
        store.db.redis.delete(key)
    with receiving() as receiver:
        yield HearsLate(f"http://127.0.0.1:{settings.port}", 0.0, Hooks(receiver))


@pytest.fixture
def client(load: Load) -> Iterator[Client]:
    client = load.client()
    yield client
    client.close()


@pytest.fixture
def ends(store: JobStore, load: Load) -> Iterator[Ends]:
    ends = Ends(store, load.accepted)
    yield ends
    ends.close()


def end(store: JobStore, job_id: str, text: str, status: Status = Status.SUCCEEDED) -> None:
    claim = claimed(store, job_id)
    result = {"text": text, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    assert store.finish(job_id, claim.fencing_token, status, result=result)


def found(store: JobStore, load: Load, ends: Ends) -> Tally:
    return verdict(store, load, ends, 0.0)


def said(tally: Tally) -> str:
    return "\n".join(tally.troubles)


def test_a_job_that_does_not_end(store: JobStore, load: Load, client: Client, ends: Ends) -> None:
    job_id = load.job(client)
    tally = found(store, load, ends)
    assert (tally.submitted, tally.lost, tally.doubled) == (1, 1, 0)
    assert f"{job_id} is queued for ever" in said(tally)
    assert "left in status:queued" in said(tally)


def test_a_batch_that_does_not_end(store: JobStore, load: Load, client: Client, ends: Ends) -> None:
    order = load.batch(client, 7)
    tally = found(store, load, ends)
    assert (tally.submitted, tally.lost) == (7, 7)
    assert f"{order.id} is stuck: {BatchStatus.VALIDATING}" in said(tally)
    assert "left in batches:active" in said(tally)


def test_a_webhook_that_does_not_come(store: JobStore, load: Load, client: Client, ends: Ends) -> None:
    job_id = load.job(client)
    end(store, job_id, load.accepted.jobs[job_id].text)
    tally = found(store, load, ends)
    assert (tally.submitted, tally.webhooks, tally.lost) == (1, 1, 1)
    assert f"no webhook came of {job_id}" in said(tally)
    assert "is pending for ever" in said(tally)


def test_a_job_that_ends_otherwise(store: JobStore, load: Load, client: Client, ends: Ends) -> None:
    job_id = load.job(client)
    end(store, job_id, "something else")
    assert f"{job_id}: succeeded" in said(found(store, load, ends))


def test_a_job_that_is_said_to_have_ended_twice(
    store: JobStore, load: Load, client: Client, ends: Ends
) -> None:
    job_id = load.job(client)
    wait_until(lambda: store.get(job_id).waiters == Ends.ID)
    end(store, job_id, load.accepted.jobs[job_id].text)
    store.db.redis.publish(f"{store.db.prefix}events:{Ends.ID}", f"{job_id} {Status.SUCCEEDED}")
    wait_until(lambda: ends.counts[job_id] == 2)
    tally = found(store, load, ends)
    assert tally.doubled == 1
    assert f"{job_id} ended twice" in said(tally)


def test_a_job_that_nobody_was_told_of(load: Load, client: Client) -> None:
    job_id = load.job(client)
    expected = load.accepted.jobs.pop(job_id)
    tally = repeats(load, client, 0.0)
    assert (tally.doubled, tally.troubles) == (1, [f"{job_id} was never accepted"])
    assert repeats(load, client, 0.0) == Tally(), "it counts once"
    load.accepted.jobs[job_id] = expected


def test_a_job_whose_client_hears_of_it_later(load: HearsLate, client: Client) -> None:
    job_id = load.job(client)
    load.late = (job_id, load.accepted.jobs.pop(job_id))
    assert repeats(load, client, 0.0) == Tally()


@pytest.mark.parametrize(
    ("early", "status", "text", "allowed"),
    [
        (Status.CANCELLED, "cancelled", "", True),
        (Status.CANCELLED, "cancelled", "w", True),
        (Status.CANCELLED, "cancelled", "x", False),
        (Status.CANCELLED, "succeeded", "w1", True),
        (Status.CANCELLED, "succeeded", "w", False),
        (Status.CANCELLED, "expired", "", False),
        (Status.EXPIRED, "expired", "", True),
        (None, "cancelled", "", False),
        (None, "failed", "w1", False),
    ],
)
def test_how_a_job_may_end(early: Status | None, status: str, text: str, allowed: bool) -> None:
    assert Expected("w1", early=early).allows(status, text, "") == allowed


def test_a_stream_without_an_end(store: JobStore, load: Load) -> None:
    follower = Follower(load, online=False)
    assert "no end of the stream" in "".join(follower.join_and_tell(limit_s=0.2))
    [job_id] = load.accepted.jobs
    store.cancel(job_id)
    follower.join(10)
    assert not follower.is_alive()


def test_a_stream_that_there_never_was(load: Load) -> None:
    load.url = f"http://127.0.0.1:{free_port()}"
    assert "there was no stream" in "".join(Follower(load, online=True).join_and_tell())


def test_a_stream_with_another_text(store: JobStore, load: Load) -> None:
    follower = Follower(load, online=False)
    [job_id] = load.accepted.jobs
    end(store, job_id, "something else")
    assert f"the stream of {job_id} said" in "".join(follower.join_and_tell())


def test_a_stream_that_cannot_be_read(store: JobStore, load: Load) -> None:
    follower = Follower(load, online=False)
    [job_id] = load.accepted.jobs
    error = {"code": "x", "message": "x", "param": None}
    assert store.finish(job_id, claimed(store, job_id).fencing_token, Status.FAILED, error=error)
    assert "broke off: " in "".join(follower.join_and_tell())
