"""Workers of different models on one Redis: each takes the jobs of its own model, and those of no model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.host.file_digest import digest_file
from engine.llama.model import default_model_path
from engine.tools.failing_engine import FACTORY as REFUSING
from engine.tools.failing_engine import REASON
from engine.tools.model_registry import NamedModel, Register
from tasks.base.queue_names import QUEUES, WINDOWS, list_key, queue_of
from tasks.base.settings import Settings
from tasks.io import reconcile_once
from tasks.records.batch import BatchStatus, NewBatch
from tasks.records.job import Priority, Status
from tasks.schema.openai_requests import JOBS
from tasks.store.jobs import ClaimRejection, JobStore
from tasks.store.queue_stats import queue_stats
from tasks.store.workers import MOST_SEEN, Registry, WorkerInfo
from tests.support.workers import Worker, Workers, wait_until
from tests.tasks.helpers.client import Client, line
from tests.tasks.helpers.records import (
    claimed,
    ended,
    is_sent,
    lose_messages,
    new,
    queued,
    send_again,
    sent_ids,
    waiting_for,
)

ONE, TWO = "one", "Two, too"  # as a file may be called
WORKER = "here:1"


def serve(workers: Workers, settings: Settings, model: str, ready: bool = True) -> Worker:
    return workers.model(settings, ready, env={"SCRIPTED_MODEL": model})


def seen(store: JobStore, *models: str) -> None:
    """As if a worker had served them, and were gone."""
    registry = Registry(store.db, 60)
    for model in models:
        registry.refresh(WorkerInfo(model, model, 2048, 1, pid=1, host="h", started_at=0.0))
        registry.leave(model)


def job_line(number: int, model: str | None, prompt: str = "hello") -> dict[str, object]:
    body = {"prompt": prompt} | ({} if model is None else {"model": model})
    return {"custom_id": f"id-{number}", "method": "POST", "url": JOBS, "body": body}


# Records and queues


def test_a_job_waits_in_the_queue_of_its_model(store: JobStore, settings: Settings) -> None:
    seen(store, TWO)
    known, unknown, unnamed = (queued(store, "x", model=m) for m in (TWO, "never", None))
    assert [store.get(job_id).model_queue for job_id in (known, unknown, unnamed)] == [TWO, "", ""]
    assert store.db.redis.llen(list_key(settings, Priority.INTERACTIVE, TWO)) == 1
    assert store.db.redis.llen(list_key(settings, Priority.INTERACTIVE)) == 2
    assert store.get(known).to_json()["model"] == TWO
    assert "lane" not in store.get(known).to_json()


def test_an_announced_model_has_a_queue_until_it_is_forgotten(store: JobStore) -> None:
    registry = Registry(store.db, 60)
    registry.announce_models([ONE, TWO], 60)
    registry.announce_models([TWO], 0.001)
    wait_until(lambda: registry.announced() == {ONE})
    assert [store.get(queued(store, model=model)).model_queue for model in (ONE, TWO)] == [ONE, ""]


def test_only_the_models_served_last_are_remembered(store: JobStore) -> None:
    store.db.redis.zadd(f"{store.db.prefix}models", {f"m{n}": n for n in range(MOST_SEEN)})
    seen(store, ONE)
    names = Registry(store.db, 60).seen()
    assert len(names) == MOST_SEEN
    assert {ONE, "m1"} <= names
    assert "m0" not in names


def test_a_worker_sends_on_what_is_for_another_model(store: JobStore) -> None:
    """As an older gateway puts it into the queue of all."""
    job_id = queued(store, model=TWO, priority=Priority.BULK, owner="o")
    assert store.get(job_id).model_queue == ""
    seen(store, TWO)
    assert store.claim(job_id, WORKER, "token", model=ONE) is ClaimRejection.ELSEWHERE
    assert sent_ids(store, Priority.BULK, TWO) == [job_id]
    job = store.get(job_id)
    assert (job.status, job.model_queue, job.attempts) == (Status.QUEUED, TWO, 0)
    assert store.db.redis.hgetall(f"{store.db.prefix}outstanding") == {f"o@{TWO}": "1"}
    claim = store.claim(job_id, WORKER, "other", model=TWO)
    assert not isinstance(claim, ClaimRejection)
    assert store.finish(job_id, claim.fencing_token, Status.SUCCEEDED)
    assert store.db.redis.hgetall(f"{store.db.prefix}outstanding") == {}


def test_what_nobody_knows_is_claimed_and_refused_by_any(store: JobStore) -> None:
    job_id = queued(store, model="never")
    assert not isinstance(store.claim(job_id, WORKER, "token", model=ONE), ClaimRejection)


def test_the_reconciler_sends_lost_messages_to_the_queue_of_the_model(
    store: JobStore, settings: Settings
) -> None:
    seen(store, ONE, TWO)
    patient = JobStore(settings.model_copy(update={"lease_ms": 1}))
    lost = [queued(store, model=model, priority=p) for model in (ONE, TWO, None) for p in Priority]
    lose_messages(store)
    store.db.redis.lpush(list_key(settings, Priority.INTERACTIVE, ONE), "{}")  # so this one is not lost

    def sent() -> dict[str, list[str]]:
        queues = [queue_of(p, model) for model in (ONE, TWO, "") for p in Priority]
        found = {name: store.db.redis.lrange(settings.key_prefix + name, 0, -1) for name in queues}
        return {n: [json.loads(m)["headers"]["id"] for m in ms if m != "{}"] for n, ms in found.items()}

    wait_until(lambda: (reconcile_once(patient), sum(map(len, sent().values())) >= 5)[1])
    got = sent()
    for job_id, (model, priority) in zip(
        lost, ((m, p) for m in (ONE, TWO, "") for p in Priority), strict=True
    ):
        expected = [] if (model, priority) == (ONE, Priority.INTERACTIVE) else [job_id]
        assert set(got[queue_of(priority, model)]) == set(expected)
    patient.close()


def test_a_queue_that_is_empty_is_not_looked_at_for_ever(store: JobStore) -> None:
    seen(store, ONE, TWO)
    held, over = queued(store, model=ONE), queued(store, model=TWO)
    store.cancel(over)
    assert store.model_queues() == ["", TWO, ONE]
    store.reconcile()
    assert store.model_queues() == ["", ONE]
    store.cancel(held)
    store.reconcile()
    assert store.model_queues() == [""]


def test_a_lease_that_ran_out_puts_a_job_back_into_the_queue_of_its_model(
    store: JobStore, settings: Settings
) -> None:
    seen(store, TWO)
    quick = JobStore(settings.model_copy(update={"lease_ms": 200}))
    job_id = queued(store, model=TWO)
    claimed(quick, job_id)
    lose_messages(store)
    wait_until(lambda: store.reconcile().requeued == 1)
    assert sent_ids(store, Priority.INTERACTIVE, TWO) == [job_id]
    quick.close()


def test_how_the_queues_of_models_stand(store: JobStore) -> None:
    seen(store, ONE, TWO)
    for model in (ONE, ONE, TWO, None):
        queued(store, model=model)
    queued(store, model=TWO, priority=Priority.BULK)
    now = queue_stats(store.db)
    assert now.waiting == {"interactive": 4, "bulk": 1}
    counts = {m: {p: q.jobs for p, q in queues.items()} for m, queues in now.models.items()}
    assert counts == {ONE: {"interactive": 2}, TWO: {"interactive": 1, "bulk": 1}}
    assert now.models[ONE]["interactive"].oldest_s <= now.oldest_s["interactive"]


# Real workers


def test_each_model_answers_its_own_and_a_dead_ones_jobs_wait(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    workers.io(settings)
    one, two = serve(workers, settings, ONE), serve(workers, settings, TWO)
    jobs = {
        queued(store, f"n{n}", model=model, priority=priority): model
        for n in range(3)
        for model in (ONE, TWO)
        for priority in Priority
    }
    pids = {ONE: one.process.pid, TWO: two.process.pid}
    for job_id, model in jobs.items():
        job = ended(store, job_id)
        assert (job.status, job.model) == (Status.SUCCEEDED, model)
        assert (job.worker or "").endswith(f":{pids[model]}")
    unnamed = ended(store, queued(store, "any"))
    assert unnamed.model in (ONE, TWO), "the record says which"

    under_way = queued(store, "delay=30", model=TWO)
    waiting_for(store, under_way, Status.RUNNING)
    two.kill()
    left = [queued(store, "x", model=TWO, priority=priority) for priority in Priority]
    assert ended(store, queued(store, "x", model=ONE)).status is Status.SUCCEEDED
    waiting_for(store, under_way, Status.QUEUED, 20)  # its lease has run out
    assert {store.get(job_id).status for job_id in left} == {Status.QUEUED}
    store.cancel(under_way)
    serve(workers, settings, TWO)
    for job_id in left:
        assert ended(store, job_id).model == TWO


def test_a_worker_that_leaves_hands_back_to_its_own_kind(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    brief = settings.model_copy(update={"drain_s": 0.1})
    serve(workers, settings, ONE)
    two = serve(workers, brief, TWO)
    job_id = queued(store, "delay=30", model=TWO)
    waiting_for(store, job_id, Status.RUNNING)
    assert two.terminate() == 0
    job = store.get(job_id)
    assert (job.status, job.model_queue, job.attempts) == (Status.QUEUED, TWO, 0)
    assert store.db.redis.llen(list_key(settings, Priority.INTERACTIVE, TWO)) == 1


def test_jobs_of_older_gateways_reach_their_model(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    """In the queues of all, with a model: who takes one sends it on, or says that the model is unknown."""
    jobs = [queued(store, model=model) for model in (ONE, TWO, "never") for _ in range(4)]
    lose_messages(store)
    serve(workers, settings, ONE)
    serve(workers, settings, TWO)
    for job_id in jobs:
        send_again(settings, job_id)
    for n, job_id in enumerate(jobs):
        job = ended(store, job_id)
        if n < 8:
            assert (job.status, job.model) == (Status.SUCCEEDED, (ONE, TWO)[n // 4])
        else:
            assert (job.error or {})["code"] == "model_not_found"


def test_a_batch_of_several_models(client: Client, settings: Settings, workers: Workers) -> None:
    serve(workers, settings, ONE)
    serve(workers, settings, TWO)
    workers.io(settings)
    models = [ONE, TWO, None, "never"]
    lines = [job_line(n, models[n % 4]) for n in range(40)]
    batch = client.end(client.batches.create(NewBatch(JOBS, client.upload(lines))))
    assert (batch.completed, batch.failed) == (30, 10)
    for entry in client.read(batch.output_file_id):
        asked = models[int(entry["custom_id"].removeprefix("id-")) % 4]
        assert entry["response"]["body"]["model"] in ((ONE, TWO) if asked is None else (asked,))
    codes = {e["response"]["body"]["error"]["code"] for e in client.read(batch.error_file_id)}
    assert codes == {"model_not_found"}


def test_a_model_that_is_away_keeps_no_other_waiting(
    store: JobStore, client: Client, settings: Settings, workers: Workers
) -> None:
    seen(store, TWO)
    serve(workers, settings, ONE)
    workers.io(settings)
    count = 128
    stuck = [
        client.create([line(n, model=TWO) for n in range(count)], owner="same", priority=priority)
        for priority in (3, 2, 1)
    ]
    wait_until(lambda: store.db.redis.hkeys(f"{store.db.prefix}outstanding") == [f"same@{TWO}"])
    for owner in ("same", "another"):
        done = client.end(client.create([line(n, model=ONE) for n in range(count)], owner=owner))
        assert (done.status, done.completed) == (BatchStatus.COMPLETED, count)
    assert [client.get(batch).completed for batch in stuck] == [0, 0, 0]
    serve(workers, settings, TWO)
    for batch in stuck:
        assert client.end(batch).completed == count


def test_single_bulk_jobs_are_held_for_their_model_alone(store: JobStore, client: Client) -> None:
    seen(store, ONE, TWO)
    assert client.batches.lead("me", {"": 1}) is not None

    def bulk(model: str | None) -> bool:
        return is_sent(store, store.create(new(priority=Priority.BULK, model=model, owner="o")))

    assert [bulk(m) for m in (ONE, ONE, TWO, None, TWO)] == [True, False, True, True, False]
    work = client.batches.lead("me", {"": 1})
    assert work is not None
    assert work.deferred == {ONE: {"o": 1}, TWO: {"o": 1}}
    assert work.in_flight == {ONE: {"o": 1}, TWO: {"o": 1}, "": {"o": 1}}
    assert queue_stats(store.db).models[TWO]["bulk"].jobs == 2, "held ones wait too"
    [released] = client.batches.release_deferred("me", {"o": 9}, TWO)
    assert released in sent_ids(store, Priority.BULK, TWO)


# Named models


def test_a_worker_serves_a_model_by_its_name(
    store: JobStore, settings: Settings, workers: Workers, tmp_path: Path
) -> None:
    path = Path(default_model_path())
    Register(tmp_path / "medusaq").add(NamedModel("small", digest_file(path, "x")))
    named = settings.model_copy(update={"model": "small"})
    worker = workers.model(named, env={"XDG_DATA_HOME": str(tmp_path)})
    [info] = Registry(store.db, 5).live()
    assert (info.model, info.pid) == ("small", worker.process.pid)
    assert ended(store, queued(store, "x", model="small")).status is Status.SUCCEEDED


@pytest.mark.parametrize("names", [(), ("small", "large")])
def test_a_worker_of_an_unknown_name_says_which_there_are(
    settings: Settings, workers: Workers, tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        Register(tmp_path / "medusaq").add(NamedModel(name, digest_file(Path(__file__), "x")))
    worker = workers.model(
        settings.model_copy(update={"model": "smal"}), ready=False, env={"XDG_DATA_HOME": str(tmp_path)}
    )
    assert worker.process.wait(30) == 3
    known = "known: large, small" if names else "none has a name yet: medusaq models add NAME PATH"
    said = f"error: the model cannot be loaded: 'smal' is neither a file nor the name of a model; {known}"
    assert said in worker.text().splitlines()


def test_a_worker_that_can_only_refuse_leaves_what_names_no_model_to_others(
    store: JobStore, settings: Settings, workers: Workers
) -> None:
    unnamed = [queued(store, "x", priority=priority) for priority in Priority]
    why = {"MEDUSAQ_MODEL": "./small.v1.gguf", REASON: "the disk is gone"}
    workers.model(settings, engine=REFUSING, env=why)
    refused = ended(store, queued(store, "x", model="small.v1"))
    assert (refused.error or {})["code"] == "model_load_failed"
    assert (refused.error or {})["message"] == "the disk is gone"
    serve(workers, settings, ONE)
    assert [ended(store, job_id).model for job_id in unnamed] == [ONE, ONE]


def test_workers_of_the_release_before_take_what_is_in_the_queues_without_a_name() -> None:
    names = ["medusaq.interactive", "medusaq.bulk"]
    assert [queue_of(priority) for priority in Priority] == names, "part of the wire format"


def test_workers_of_the_release_before_take_no_windows() -> None:
    assert QUEUES[WINDOWS] == "medusaq.windows"
