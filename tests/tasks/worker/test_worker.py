"""Jobs of a model worker, with a real Celery process, a real server and the scripted engine."""

from __future__ import annotations

import signal
import time

import pytest

import engine
from tasks.base.settings import Settings
from tasks.records.job import Acceptance, Decoding, NewJob, Status
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry
from tests.support.workers import Worker, Workers, wait_until
from tests.tasks.helpers.records import claimed, ended, queued, send_again, unsent, waiting_for

pytestmark = pytest.mark.stack


def test_the_names_of_a_request_are_the_engines() -> None:
    assert list(Decoding) == list(engine.Decoding)
    assert list(Acceptance) == list(engine.Acceptance)


def test_outcomes(settings: Settings, store: JobStore, worker: Worker) -> None:
    """Success, failure, a foreign model, cancels and deadlines, by one worker, which survives them all."""
    good = ended(store, queued(store, "hello there delay=0.2 tokens=10"))
    assert good.status is Status.SUCCEEDED
    assert good.error is None
    assert good.result is not None
    assert good.result["text"] == "hello there"
    assert good.model == "scripted", "though none was asked for"
    assert good.result["finish_reason"] == "stop"
    assert good.result["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 10,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    timing = good.result["timing"]
    assert 0 <= timing["queue_s"] < timing["total_s"]
    working = timing["total_s"] - timing["queue_s"]
    assert 0.2 <= working < 20
    assert timing["tokens_per_s"] == pytest.approx(10 / working)
    assert good.worker is not None
    assert good.worker.endswith(f":{worker.process.pid}")
    assert good.result["speculation"] == {"steps": 10, "tokens_per_step": 1.0, "sources": {}}
    shown = f"10 tokens, {timing['tokens_per_s']:.1f} tok/s, 10 steps, 1.00 tokens/step, stop"
    wait_until(lambda: shown in worker.text(), report=worker.text)

    bad = ended(store, queued(store, "fail=decode_failed delay=0.05"))
    assert bad.status is Status.FAILED
    assert bad.error == {"code": "decode_failed", "message": "as the script says", "param": None}

    foreign = ended(store, queued(store, "hi", model="another"))
    assert foreign.error is not None
    assert (foreign.error["code"], foreign.error["param"]) == ("model_not_found", "model")
    assert ended(store, queued(store, "hi", model="scripted")).status is Status.SUCCEEDED

    for param, value, code in (
        ("temperature", -1, "invalid_request"),
        ("decoding", "psychic", "invalid_request"),
        ("acceptance", "any", "invalid_request"),
        ("decoding", "medusa", "no_heads"),
    ):
        refused = store.create(NewJob(request={"prompt": "hi", param: value}))
        error = ended(store, refused.id).error
        assert error is not None
        assert (error["param"], error["code"]) == (param, code)

    asked = {"prompt": 'cut=1 tokens=3 {"a":', "response_format": {"type": "json_object"}}
    torn = store.create(NewJob(request=asked))
    incomplete = ended(store, torn.id)
    assert (incomplete.status, (incomplete.error or {})["code"]) == (Status.FAILED, "incomplete")
    assert incomplete.result is not None, "the text so far is not lost"
    assert (incomplete.result["text"], incomplete.result["finish_reason"]) == ('{"a":', "length")
    assert incomplete.result["usage"]["completion_tokens"] == 3
    wait_until(lambda: "incomplete" in worker.text())
    assert "cut off" not in worker.text(), "a message may quote the request"

    running = queued(store, "partial text delay=30 tokens=1000")
    waiting_for(store, running, Status.RUNNING)
    time.sleep(0.3)
    assert store.cancel(running).status is Status.RUNNING
    cancelled = ended(store, running)
    assert cancelled.status is Status.CANCELLED
    assert cancelled.result is not None
    assert 0 < cancelled.result["usage"]["completion_tokens"] < 1000

    late = queued(store, "partial text delay=30 tokens=1000", deadline=time.time() + 2)
    expired = ended(store, late)
    assert expired.status is Status.EXPIRED
    assert expired.result is not None
    assert expired.result["finish_reason"] == "expired"

    early = unsent(store, deadline=time.time() + 0.05)
    time.sleep(0.1)
    send_again(settings, early)
    assert ended(store, early).result is None

    stored = {name: value for name, value in good.result.items() if name != "speculation"}
    old = unsent(store)
    assert store.finish(old, claimed(store, old).fencing_token, Status.SUCCEEDED, result=stored)
    send_again(settings, old)
    shown_again = f"'10 tokens, {timing['tokens_per_s']:.1f} tok/s, stop'"
    wait_until(lambda: shown_again in worker.text(), report=worker.text)

    [info] = Registry(store.db, settings.worker_ttl_s).live()
    assert (info.model, info.slots, info.context_length) == ("scripted", settings.slots, 2048)
    assert info.metrics["generated_tokens_total"] > 10
    assert not info.has_heads
    assert "Traceback" not in worker.text()
    assert "received" not in worker.text(), "one line for each job, at its end"


def test_a_job_that_waits_to_be_alone_obeys_cancels_and_deadlines(
    settings: Settings, store: JobStore, worker: Worker
) -> None:
    beside = queued(store, "partial text delay=30 tokens=1000")
    waiting_for(store, beside, Status.RUNNING)
    for status in (Status.CANCELLED, Status.EXPIRED):
        deadline = time.time() + 2 if status is Status.EXPIRED else None
        last = unsent(store, "hello", deadline=deadline)
        store.db.redis.hset(f"{store.db.prefix}job:{last}", "attempts", settings.max_attempts - 1)
        send_again(settings, last)
        waiting_for(store, last, Status.RUNNING)
        if status is Status.CANCELLED:
            store.cancel(last)
        job = ended(store, last)
        assert (job.status, job.result) == (status, None)
        wait_until(lambda: f"{status} before it ran" in worker.text(), report=worker.text)  # noqa: B023
    assert store.get(beside).status is Status.RUNNING
    assert ended(store, queued(store, "hello")).status is Status.SUCCEEDED
    store.cancel(beside)


def test_an_error_of_our_own_is_not_taken_for_a_lost_worker(store: JobStore, worker: Worker) -> None:
    """Of a record that no gateway of this version lets in."""
    job = store.create(NewJob(request={"prompt": "hi", "logit_bias": {"word": 1}}))
    failed = ended(store, job.id, 5)
    assert (failed.status, failed.attempts) == (Status.FAILED, 1)
    assert failed.error is not None
    assert failed.error["code"] == "internal_error"
    assert "word" not in failed.error["message"]
    wait_until(lambda: "ValueError" in worker.text())


@pytest.mark.usefixtures("worker")
def test_the_lease_of_a_long_job_is_renewed(store: JobStore, settings: Settings, workers: Workers) -> None:
    workers.io(settings)
    job_id = queued(store, "delay=7")
    job = ended(store, job_id)
    assert (job.status, job.attempts) == (Status.SUCCEEDED, 1)


def test_repeated_messages_do_nothing(settings: Settings, store: JobStore, worker: Worker) -> None:
    job_id = queued(store, "delay=3")
    waiting_for(store, job_id, Status.RUNNING)
    send_again(settings, job_id)
    before = ended(store, job_id)
    send_again(settings, job_id)
    send_again(settings, "job_none")
    assert ended(store, queued(store, "last")).status is Status.SUCCEEDED
    assert store.get(job_id) == before
    assert before.attempts == 1
    assert "Traceback" not in worker.text()


def test_a_job_taken_by_another_worker_is_dropped(store: JobStore, worker: Worker) -> None:
    """The lease is lost while this worker still computes: its result must not be written."""
    job_id = queued(store, "mine delay=5")
    waiting_for(store, job_id, Status.RUNNING)
    fencing_token = int(store.db.redis.hget(f"{store.db.prefix}job:{job_id}", "fence"))
    worker.process.send_signal(signal.SIGSTOP)  # or it may be the first to claim it again
    assert store.requeue(job_id, fencing_token)
    claim = claimed(store, job_id, "theirs")
    worker.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "not ours any more" in worker.text())
    assert store.finish(job_id, claim.fencing_token, Status.SUCCEEDED, result={"text": "theirs"})
    assert store.get(job_id).result == {"text": "theirs"}
