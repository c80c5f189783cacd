"""Batches by real workers: every line answered once, in order, whatever is killed in between."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.base.settings import Settings
from tasks.batches.ingest import Ingest
from tasks.batches.segments import remove_all
from tasks.files.records import object_name
from tasks.records.batch import BatchStatus, Ending, NewBatch
from tasks.records.job import NewJob, Priority, Status
from tasks.schema.openai_requests import COMPLETIONS
from tasks.store.jobs import JobStore
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.client import Client, answered_once, ids, line
from tests.tasks.helpers.records import ended, ended_long_ago, queued


def test_every_line_has_its_answer_in_order(client: Client, settings: Settings, workers: Workers) -> None:
    workers.io(settings)
    workers.model(settings)
    lines: list[Any] = [line(n, f"say {n} delay={0.05 if n % 3 == 0 else 0}") for n in range(40)]
    lines[4] = line(4, "say 4 cut=1")
    lines[5] = b'{"custom_id": "id-5"'
    lines[9] = line(9, max_tokens=-1)
    lines[11] = line(9)
    lines[17] = line(17, "x fail=boom")
    lines[18] = line(18, "x fail=context_length_exceeded param=prompt")
    lines[19] = line(19, 'cut=1 {"a": 1,', response_format={"type": "json_object"})
    batch = client.end(client.create(lines, metadata={"night": "1"}))
    assert batch.status is BatchStatus.COMPLETED
    assert (batch.total, batch.completed, batch.failed) == (40, 34, 6)
    good, bad = client.read(batch.output_file_id), client.read(batch.error_file_id)
    assert ids(good) == [f"id-{n}" for n in range(40) if n not in (5, 9, 11, 17, 18, 19)]
    assert [entry["response"]["body"]["choices"][0]["text"] for entry in good[:3]] == [
        "say 0",
        "say 1",
        "say 2",
    ]
    assert all(entry["response"]["status_code"] == 200 and entry["error"] is None for entry in good)
    assert ids(bad) == [None, "id-9", None, "id-17", "id-18", "id-19"]
    assert [(e["error"] or {}).get("line") for e in bad] == [6, 10, 12, 18, None, 20]
    codes = [e["error"]["code"] if e["error"] else e["response"]["body"]["error"]["code"] for e in bad]
    assert codes == [
        "invalid_json_line",
        "invalid_value",
        "duplicate_custom_id",
        "boom",
        "context_length_exceeded",
        "incomplete",
    ]
    assert bad[5]["error"]["partial"] == '{"a": 1,', "the text so far is not lost"
    assert bad[4]["response"]["status_code"] == 400
    assert batch.codes == dict.fromkeys(codes, 1)
    assert batch.cut == 2, "an answer, and one that had to be JSON"
    assert [(e["line"], e["code"]) for e in batch.errors] == [
        (6, "invalid_json_line"),
        (10, "invalid_value"),
        (12, "duplicate_custom_id"),
    ]
    assert (
        batch.output_tokens
        == sum(entry["response"]["body"]["usage"]["completion_tokens"] for entry in good) + 1
    ), "what was cut off was generated too"
    assert set(batch.times) == {"in_progress", "finalizing", "completed"}
    assert client.records.get(batch.output_file_id or "").purpose == "batch_output"
    ended_long_ago(client.batches, batch.id)
    wait_until(lambda: client.files.list(f"batches/{batch.id}") == [])  # what only a running batch needs
    assert client.batches.live(batch.id) == []


def test_the_first_line_does_not_wait_for_the_last(
    client: Client, settings: Settings, workers: Workers
) -> None:
    workers.model(settings)
    workers.io(settings)
    batch = client.create([line(n, "word " * 200) for n in range(20_000)])
    wait_until(lambda: client.get(batch).completed > 0)
    seen = client.get(batch)
    client.batches.stop(batch.id, Ending.CANCELLED)
    done = client.end(batch)
    assert seen.status is BatchStatus.VALIDATING
    assert 1 <= done.completed + done.failed == done.total <= 20_000


def test_partial_results_can_be_read(client: Client, settings: Settings, workers: Workers) -> None:
    from tasks.batches.segments import merged

    workers.io(settings)
    workers.model(settings)
    batch = client.create([line(n, "x delay=0.3") for n in range(24)])
    wait_until(lambda: bool(client.get(batch).segments))
    seen = client.get(batch)
    results = [json.loads(entry.line)["custom_id"] for entry in merged(client.files, batch.id, seen.segments)]
    assert 0 < len(results) < 24
    assert results == sorted(results, key=lambda name: int(name[3:]))
    assert client.end(batch).completed == 24


def test_a_cancelled_batch_answers_every_line(client: Client, settings: Settings, workers: Workers) -> None:
    workers.io(settings)
    workers.model(settings)
    batch = client.create([line(n, "x delay=0.2") for n in range(200)])
    wait_until(lambda: client.get(batch).completed >= 4)
    assert client.batches.stop(batch.id, Ending.CANCELLED).status is BatchStatus.CANCELLING
    done = client.end(batch)
    assert done.status is BatchStatus.CANCELLED
    assert 4 <= done.completed < 200
    answered_once(client, done, 200)
    assert {e["error"]["code"] for e in client.read(done.error_file_id)} == {"batch_cancelled"}
    assert set(done.times) >= {"cancelling", "cancelled"}
    never_sent = [e for e in client.read(done.error_file_id) if e["error"]["message"].endswith("was sent")]
    assert done.total - done.completed - done.failed == len(never_sent) > 0, "neither completed nor failed"
    assert done.codes == ({"batch_cancelled": done.failed} if done.failed else {}), "of those that were sent"
    rest = {"failed": 0, "cancelled": 200 - done.completed, "expired": 0}
    assert done.request_counts() == {"total": 200, "completed": done.completed, **rest}
    assert done.to_json()["top_errors"] == []


def test_what_has_not_run_by_the_deadline_expires(
    client: Client, settings: Settings, workers: Workers
) -> None:
    workers.io(settings)
    workers.model(settings)
    batch = client.create([line(n, "x delay=0.3") for n in range(200)], deadline=time.time() + 3)
    done = client.end(batch)
    assert done.status is BatchStatus.EXPIRED
    assert 0 < done.completed < 200
    answered_once(client, done, 200)
    assert {e["error"]["code"] for e in client.read(done.error_file_id)} == {"batch_expired"}
    counts = done.request_counts()
    assert (counts["failed"], counts["cancelled"], counts["expired"]) == (0, 0, 200 - done.completed)


def test_killed_io_workers_lose_and_repeat_nothing(
    client: Client, settings: Settings, workers: Workers
) -> None:
    workers.model(settings)
    worker = workers.io(settings)
    batch = client.create([line(n, "x delay=0.05") for n in range(200)])
    for kill in range(2):
        wait_until(lambda least=(kill + 1) * 60: client.get(batch).completed >= least)
        worker.kill()
        worker = workers.io(settings)
    done = client.end(batch)
    assert (done.completed, done.failed) == (200, 0)
    answered_once(client, done, 200)


def test_a_file_that_was_half_read_is_read_again(
    client: Client, settings: Settings, workers: Workers
) -> None:
    workers.model(settings)
    worker = workers.io(settings)
    batch = client.create([line(n, "word " * 50) for n in range(20_000)])
    wait_until(lambda: client.get(batch).total >= 1000)
    assert not client.get(batch).validated
    worker.kill()
    workers.io(settings)
    wait_until(lambda: client.get(batch).validated)
    client.batches.stop(batch.id, Ending.CANCELLED)
    done = client.end(batch)
    answered_once(client, done, 20_000)


def test_what_was_read_is_not_read_again(client: Client, settings: Settings) -> None:
    """By one who looked at the batch before the end of the first reading."""
    batch = client.create([line(n) for n in range(3)])
    assert client.batches.lead("me", {"": 64}) is not None
    ingest = Ingest(client.files, client.batches, settings, "me")
    for _ in ingest.run(batch.id):
        pass
    assert client.get(batch).total == 3
    for _ in remove_all(client.files, batch.id):
        pass
    for _ in ingest.run(batch.id):
        pass
    assert client.files.list(f"batches/{batch.id}") == []


def test_a_killed_model_worker_costs_no_line(client: Client, settings: Settings, workers: Workers) -> None:
    workers.io(settings)
    first = workers.model(settings)
    batch = client.create([line(n, "x delay=0.1") for n in range(60)])
    wait_until(lambda: client.get(batch).completed >= 10)
    first.kill()
    workers.model(settings)
    done = client.end(batch)
    assert (done.completed, done.failed) == (60, 0)
    answered_once(client, done, 60)


def test_two_owners_share_a_worker(client: Client, settings: Settings, workers: Workers) -> None:
    workers.io(settings)
    workers.model(settings)
    large = client.create([line(n, "x delay=0.05") for n in range(600)], owner="large")
    wait_until(lambda: client.get(large).completed >= 40)
    before = client.get(large).completed
    small = client.create([line(n, "x delay=0.05") for n in range(100)], owner="small")
    client.end(small)
    meanwhile = client.get(large).completed - before
    client.batches.stop(large.id, Ending.CANCELLED)
    # Beside it the large one may have as much, and what was sent before the small one came, twice 64 lines; a
    # busy machine tells of the small one's end late. One after the other it would be all of the 600.
    assert 50 <= meanwhile <= 100 + 4 * 64
    client.end(large)


def test_among_one_owners_batches_the_earlier_deadline_goes_first(
    client: Client, settings: Settings, workers: Workers
) -> None:
    workers.io(settings)
    workers.model(settings)
    late = client.create([line(n, "x delay=0.05") for n in range(500)], owner="me")
    wait_until(lambda: client.get(late).completed >= 10)
    early = client.create(
        [line(n, "x delay=0.05") for n in range(80)], owner="me", deadline=time.time() + 3600
    )
    client.end(early)
    assert client.get(late).completed < 250
    client.batches.stop(late.id, Ending.CANCELLED)
    client.end(late)


def test_interactive_jobs_overtake_a_batch(
    client: Client, store: JobStore, settings: Settings, workers: Workers
) -> None:
    workers.io(settings)
    workers.model(settings)
    batch = client.create([line(n, "x delay=0.1") for n in range(500)])
    wait_until(lambda: client.get(batch).completed >= 10)
    job = ended(store, queued(store, "quick"))
    assert job.status is Status.SUCCEEDED
    assert client.get(batch).completed < 250
    client.batches.stop(batch.id, Ending.CANCELLED)
    client.end(batch)


def test_held_jobs_are_sent_in_their_turn(
    client: Client, store: JobStore, settings: Settings, workers: Workers
) -> None:
    workers.io(settings)
    workers.model(settings)
    batch = client.create([line(n, "x delay=0.05") for n in range(300)], owner="batch")
    wait_until(lambda: client.get(batch).completed >= 10)
    jobs = []
    for _ in range(100):
        new = NewJob({"prompt": "x delay=0.05"}, priority=Priority.BULK, owner="single")
        jobs.append(store.create(new).id)
    for job_id in jobs:
        assert ended(store, job_id).status is Status.SUCCEEDED
    assert client.end(batch).completed == 300


def test_only_what_failed_is_run_again(client: Client, settings: Settings, workers: Workers) -> None:
    workers.io(settings)
    workers.model(settings)
    lines: list[Any] = [line(n, "x fail=boom" if n % 3 == 0 else "x") for n in range(9)]
    lines.append(b"{")
    first = client.end(client.create(lines))
    assert (first.completed, first.failed) == (6, 4)
    again = client.batches.create(NewBatch(COMPLETIONS, first.input_file_id, retry_of=first.id))
    done = client.end(again)
    assert (done.total, done.completed, done.failed) == (3, 0, 3)
    assert ids(client.read(done.error_file_id)) == ["id-0", "id-3", "id-6"]
    good = client.end(client.create([line(1)]))
    nothing = client.end(client.batches.create(NewBatch(COMPLETIONS, good.input_file_id, retry_of=good.id)))
    assert nothing.status is BatchStatus.FAILED
    assert nothing.errors[0]["code"] == "nothing_failed"


def test_a_dry_run_validates_and_sends_nothing(client: Client, settings: Settings, workers: Workers) -> None:
    workers.io(settings)
    batch = client.end(client.create([line(1), b"{", line(2)], dry_run=True))
    assert batch.status is BatchStatus.COMPLETED
    assert (batch.total, batch.completed, batch.failed) == (3, 0, 1)
    assert batch.output_file_id is None
    assert [e["error"]["line"] for e in client.read(batch.error_file_id)] == [2]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_file_without_a_valid_line_fails_its_batch(
    client: Client, settings: Settings, workers: Workers, dry_run: bool
) -> None:
    workers.io(settings)
    batch = client.end(client.create([b"{", line(1, max_tokens=0)], dry_run=dry_run))
    assert batch.status is BatchStatus.FAILED
    assert (batch.total, batch.completed, batch.failed) == (2, 0, 2)
    assert [error["line"] for error in batch.errors] == [1, 2]
    assert [e["error"]["line"] for e in client.read(batch.error_file_id)] == [1, 2]
    assert "failed" in batch.times
    ended_long_ago(client.batches, batch.id)
    wait_until(lambda: client.files.list(f"batches/{batch.id}") == [])


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"", "empty_file", "holds no line"),
        (b"\n \r\n\n", "empty_file", "holds no line"),
        (b"PK\x03\x04rest of it", "invalid_file", "zip archive"),
        ("{}".encode("utf-16"), "invalid_file", "UTF-16"),
        (b"{}\n" * 201, "too_many_tasks", "more than 200 lines, blank ones counted too"),
        (b"{}\n" + b"\n" * 200, "too_many_tasks", "more than 200 lines, blank ones counted too"),
    ],
)
def test_a_file_that_is_no_batch_fails_at_once(
    client: Client, settings: Settings, workers: Workers, content: bytes, code: str, message: str
) -> None:
    workers.io(settings.model_copy(update={"max_batch_lines": 200}))
    batch = client.end(client.batches.create(NewBatch(COMPLETIONS, client.upload_bytes(content))))
    assert batch.status is BatchStatus.FAILED
    assert batch.errors[0]["code"] == code
    assert message in batch.errors[0]["message"]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert "failed" in batch.times


def test_a_file_that_is_gone_fails_its_batch(client: Client, settings: Settings, workers: Workers) -> None:
    workers.io(settings)
    file_id = client.upload([line(1)])
    client.files.delete(object_name(file_id))
    batch = client.end(client.batches.create(NewBatch(COMPLETIONS, file_id)))
    assert (batch.status, batch.errors[0]["code"]) == (BatchStatus.FAILED, "file_not_found")


def test_lines_with_the_same_beginning_are_sent_near_each_other(
    client: Client, settings: Settings, workers: Workers, tmp_path: Path
) -> None:
    instructions = [f"Instruction {i}. " + "Be brief. " * 60 for i in range(3)]
    lines = [line(n, f"{instructions[n % 3]} Number {n}") for n in range(30)]
    log = tmp_path / "starts"
    workers.io(settings)
    batch = client.create(lines)
    wait_until(lambda: client.get(batch).validated)  # so that all can be sent in order
    workers.model(
        settings.model_copy(update={"slots": 1}),
        env={"SCRIPTED_LOG": str(log)},
    )
    done = client.end(batch)
    assert ids(client.read(done.output_file_id)) == [f"id-{n}" for n in range(30)]
    sent = [int(entry.split()[1].partition("-")[2].partition(".")[0]) for entry in starts(log)]
    kinds = [(number - 1) % 3 for number in sent]
    changes = sum(a != b for a, b in itertools.pairwise(kinds))
    assert changes <= 8, "three kinds in turns would change 29 times"


def starts(log: Path) -> list[str]:
    return [entry for entry in log.read_text().splitlines() if entry.startswith("start ")]


def test_a_store_that_is_away_for_a_while_costs_time_alone(
    client: Client, settings: Settings, workers: Workers, tmp_path: Path
) -> None:
    """The folder turns into a file: nothing can be written, for root neither."""
    workers.io(settings)
    workers.model(settings)
    batch = client.create([line(n, "x delay=0.05") for n in range(120)])
    wait_until(lambda: bool(client.get(batch).segments))
    folder, aside = Path(settings.files), tmp_path / "aside"
    folder.rename(aside)
    folder.write_text("in the way")
    time.sleep(1.0)
    folder.unlink()
    aside.rename(folder)
    done = client.end(batch)
    assert (done.completed, done.failed) == (120, 0)
    answered_once(client, done, 120)
