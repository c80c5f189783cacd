"""The life of a job in every interleaving: two workers, messages, the reconciler, a client, and time.

Each step and what must hold after it: tests/tasks/helpers/job_life.py.
"""

from __future__ import annotations

import pytest
import redis

from tests.tasks.helpers.explorer import MOST_STATES, MS, Broken, Known, Server, explore
from tests.tasks.helpers.job_life import JobLife
from tests.tasks.helpers.job_state import DEADLINE, MODEL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


def test_no_interleaving_gives_two_winners_or_a_stuck_job(scratch: redis.Redis, known: Known) -> None:
    server = Server(scratch, known=known)
    life = JobLife(server)
    found = explore(server, life, MOST_STATES)
    print(found)
    assert found.ended > 10
    assert found.states > 100
    assert life.ends == {"succeeded", "failed", "cancelled"}


def test_no_interleaving_runs_a_job_after_its_deadline_or_leaves_it_waiting(
    scratch: redis.Redis, known: Known
) -> None:
    server = Server(scratch, known=known)
    life = JobLife(server, DEADLINE * MS)
    print(explore(server, life, MOST_STATES))
    assert life.ends == {"succeeded", "failed", "cancelled", "expired"}


def test_no_interleaving_gives_a_job_to_a_worker_of_another_model(scratch: redis.Redis, known: Known) -> None:
    server = Server(scratch, known=known)
    life = JobLife(server, model=MODEL, serve=(MODEL, "other"))
    found = explore(server, life, MOST_STATES)
    print(found)
    assert life.ends == {"succeeded", "failed", "cancelled"}
    assert {"a claims", "b claims"} <= found.names


@pytest.mark.parametrize("deadline", [None, pytest.param(DEADLINE * MS, marks=pytest.mark.thorough)])
def test_no_interleaving_loses_a_held_job(scratch: redis.Redis, known: Known, deadline: int | None) -> None:
    life = JobLife(Server(scratch, known=known), deadline, held=True)
    found = explore(Server(scratch, known=known), life, MOST_STATES)
    print(found)
    assert {"released", "another one ends", "a claims", "reconcile", "cancel"} <= found.names
    assert life.ends >= {"succeeded", "cancelled"}


MUTATIONS_OF_HELD = [
    ("lib/queues", "  send(job)\nend\n\n-- The accounts", "end\n\n-- The accounts"),
    ("lib/queues", "  leave_lists(job)\n  redis.call('HSET'", "  redis.call('HSET'"),
    (
        "lib/queues",
        "  add_in_flight(job.priority, job.owner, job.lane)\n  send(job)\n",
        "  send(job)\n",
    ),
    ("lib/queues", "in_flight('interactive', model_queue) >= capacity", "true"),
    ("lib/queues", "if job.priority == 'bulk' then wake() else release_next(job.lane) end", "wake()"),
    ("lib/queues", "  if redis.call('ZREM', deferred .. ':' .. of, job.id) == 1 then", "  if false then"),
    ("lib/queues", "  if redis.call('HINCRBY', counts, of, -1) <= 0 then", "  if false then"),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS_OF_HELD)
def test_a_fault_with_held_jobs_is_found_out(
    scratch: redis.Redis, known: Known, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, JobLife(server, held=True), MOST_STATES)
    print(script, repr(new), caught.value)


MUTATIONS_OF_MODELS = [
    ("jobs/claim", "    requeue(job, job.attempts)\n", ""),
    ("jobs/claim", "model ~= own", "model == ''"),
    ("lib/queues", "  remove_in_flight(job)\n  job.lane = model_queue", "  job.lane = model_queue"),
    ("jobs/claim", "    leave_lists(job)\n    move_to_model_queue", "    move_to_model_queue"),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS_OF_MODELS)
def test_a_fault_with_models_is_found_out(
    scratch: redis.Redis, known: Known, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, JobLife(server, model=MODEL, serve=(MODEL, "other")), MOST_STATES)
    print(script, repr(new), caught.value)


MUTATIONS = [
    ("lib/job_states", "int(job.stored + more)", "job.stored"),
    ("lib/job_states", "if job.stored ~= '' then count_bytes(job.owner, more) end", ""),
    ("lib/outbox", "  count_bytes(owner, bytes)\n", ""),
    ("jobs/finish", " or job.fence ~= fencing_token then", " then"),
    ("jobs/finish", "if job.status ~= 'running' then return 0 end", ""),
    ("jobs/finish", "if job.written_fence == fencing_token then return 1 end", ""),
    ("jobs/heartbeat", " or job[2] ~= fence then", " then"),
    ("jobs/claim", "if TERMINAL[job.status] then return { 'done' } end", ""),
    ("jobs/claim", " and job.lease_until > NOW then", " and false then"),
    ("jobs/claim", "job.fence = next_fence(job)", "job.fence = job.fence"),
    ("queues/expire_leases", "redis.call('ZADD', P .. index, 0, id)", "redis.call('ZREM', P .. index, id)"),
    ("jobs/claim", "if job.uncounted == '' then", "if true then"),
    ("jobs/start_isolated", " or job.fence ~= tonumber(ARGV[2]) then", " then"),
    ("jobs/start_isolated", "int(job.attempts + 1)", "int(job.attempts)"),
    ("jobs/requeue", " or job.fence ~= tonumber(ARGV[2]) then", " then"),
    ("queues/reconcile", "requeue(job, job.attempts)", "requeue(job, job.attempts - 1)"),
    ("queues/reconcile", "    send(job)\n    resent", "    resent"),
    ("lib/job_states", "  send(job)\n", ""),
    ("jobs/cancel", "cancel(job, tonumber(ARGV[2]))", "close(job, 'cancelled', '', '', tonumber(ARGV[2]))"),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS)
def test_a_script_with_a_fault_is_found_out(
    scratch: redis.Redis, known: Known, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, JobLife(server), MOST_STATES)
    print(script, repr(new), caught.value)


MUTATIONS_OF_DEADLINES = [
    (
        "queues/reconcile",
        "if job.status == 'queued' then\n    close(job, 'expired'",
        "if false then\n    close(job, 'expired'",
    ),
    ("lib/job_states", "elseif job.deadline and job.deadline <= NOW then", "elseif false then"),
    (
        "lib/job_states",
        "  if job.deadline then redis.call('ZADD', P .. 'deadlines', int(job.deadline), job.id) end\n",
        "",
    ),
]


@pytest.mark.parametrize(("script", "old", "new"), MUTATIONS_OF_DEADLINES)
def test_a_fault_with_deadlines_is_found_out(
    scratch: redis.Redis, known: Known, script: str, old: str, new: str
) -> None:
    server = Server(scratch, {script: (old, new)}, known)
    with pytest.raises(Broken) as caught:
        explore(server, JobLife(server, DEADLINE * MS), MOST_STATES)
    print(script, repr(new), caught.value)
