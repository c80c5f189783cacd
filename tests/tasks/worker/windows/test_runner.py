"""Windows in a real model worker with the scripted engine: what becomes of their lines, whatever happens."""

from __future__ import annotations

import signal
import time

import pytest

from tasks.base.settings import Settings
from tasks.records.batch import Ending
from tasks.records.job import Status
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Worker, Workers, wait_until
from tests.tasks.helpers.records import ended, queued
from tests.tasks.worker.windows.sent import Sent, answer_of

pytestmark = pytest.mark.stack


def test_outcomes(sent: Sent, worker: Worker) -> None:
    """Success, failure, a refusal, torn JSON, a foreign model: each line has its entry."""
    sent.scripts(
        ["hello there tokens=4", "fail=decode_failed", "late delay=0.3", "fail=invalid_request param=prompt"]
    )
    found = sent.ended(4, worker)
    assert found[1]["id"] == f"batch_req_{sent.batch.id.removeprefix('batch_')}-1"
    assert found[1]["custom_id"] == "id-1"
    body = found[1]["response"]["body"]
    assert body["choices"][0]["message"]["content"] == "hello there"
    assert body["usage"]["completion_tokens"] == 4
    assert body["model"] == "scripted", "though none was asked for"
    assert found[2]["error"] == {
        "code": "decode_failed",
        "message": "as the script says",
        "param": None,
        "line": 2,
    }
    assert answer_of(found[3]) == "late"
    assert found[4]["response"]["status_code"] == 400
    assert sent.counted("completed", "failed", "lines_live", "output_tokens") == [2, 2, 0, 5]
    assert sent.live() == {"results"}
    wait_until(lambda: "'4 lines, " in worker.text(), report=worker.text)
    assert "Traceback" not in worker.text()

    sent.scripts(['cut=1 tokens=3 {"a":'], first=5, response_format={"type": "json_object"})
    torn = sent.ended(5, worker)[5]
    assert (torn["error"]["code"], torn["error"]["partial"]) == ("incomplete", '{"a":')
    assert sent.counted("cut") == [1]
    sent.scripts(["x"], first=6, model="another")
    assert sent.texts(6, worker)[6] == "model_not_found"


def test_lines_that_run_are_told_though_none_ends(sent: Sent, settings: Settings, worker: Worker) -> None:
    """Within a second or two, and less than what was told before never."""
    sent.scripts([f"delay=60 tokens=6000 n{n}" for n in range(settings.slots + 2)])
    seen: list[int] = []

    def grows() -> bool:
        told = sent.windows.running([sent.batch.id])[sent.batch.id]
        if told.output_tokens != (seen[-1] if seen else 0):
            assert told.lines == settings.slots, "others wait"
            seen.append(told.output_tokens)
        return len(seen) >= 3

    wait_until(grows, report=worker.text)
    assert seen == sorted(seen)
    assert sent.results() == []
    sent.batches.stop(sent.batch.id, Ending.CANCELLED)
    sent.ended(settings.slots + 2, worker)
    assert sent.windows.running([sent.batch.id])[sent.batch.id].lines == 0


def test_the_engines_slots_stay_full_across_windows(sent: Sent, settings: Settings, worker: Worker) -> None:
    windows, each = 6, 4
    began = time.monotonic()
    sent.scripts(*([f"delay=0.25 n{w}.{n}" for n in range(each)] for w in range(windows)))
    sent.ended(windows * each, worker)
    ideal = 0.25 * windows * each / settings.slots
    assert time.monotonic() - began < ideal + 3
    wait_until(lambda: worker.text().count("4 lines, 4 succeeded") == windows, report=worker.text)


def test_an_interactive_job_overtakes_the_lines_that_wait(
    sent: Sent, settings: Settings, worker: Worker
) -> None:
    lines = 12 * settings.slots
    sent.scripts([f"delay=0.5 n{n}" for n in range(lines)])
    wait_until(lambda: len(sent.results()) > 0, report=worker.text)
    began = time.monotonic()
    ended(sent.store, queued(sent.store, "delay=0.1 now"))
    assert time.monotonic() - began < 3, "a slot's time, not that of the whole window"
    assert len(sent.results()) < lines / 2
    sent.ended(lines, worker)


def test_an_interactive_job_takes_the_next_free_slot(redis_server: RedisServer, workers: Workers) -> None:
    """Not one after the line of the window that waits in the engine already."""
    settings, line_s, other_s = fast_settings(redis_server, slots=1), 2, 1
    sent, lines = Sent.begun(settings), 6
    worker = workers.model(settings)
    sent.scripts([f"delay={line_s} n{n}" for n in range(lines)])
    wait_until(lambda: len(sent.results()) > 1, report=worker.text)
    job = ended(sent.store, queued(sent.store, "delay=0.1 now"))
    assert job.result is not None
    assert job.result["timing"]["queue_s"] < line_s + other_s
    sent.batches.stop(sent.batch.id, Ending.CANCELLED)
    sent.ended(lines, worker)
    sent.store.close()


def test_a_cancel_reaches_running_lines_within_a_heartbeat(
    redis_server: RedisServer, workers: Workers
) -> None:
    settings = fast_settings(redis_server, lease_ms=30_000)
    sent, other_s = Sent.begun(settings), 2
    worker = workers.model(settings)
    [window] = sent.scripts([f"partial text delay=60 tokens=900 n{n}" for n in range(settings.slots)])
    wait_until(lambda: sent.record(window).get("opened") == str(settings.slots), report=worker.text)
    sent.batches.stop(sent.batch.id, Ending.CANCELLED)
    began = time.monotonic()
    entries = sent.ended(settings.slots, worker)
    assert time.monotonic() - began < settings.heartbeat_s + other_s
    assert {answer_of(entry) for entry in entries.values()} == {"batch_cancelled"}
    sent.store.close()


def test_a_worker_leaves_windows_to_others_once_it_has_enough(sent: Sent, worker: Worker) -> None:
    sent.scripts(*([f"delay=1 n{w}.{n}" for n in range(8)] for w in range(4)))
    wait_until(lambda: len(sent.results()) > 0, report=worker.text)
    assert len(sent.sent()) >= 2, "they are in the queue"
    sent.ended(32, worker)


def test_a_batch_that_is_cancelled_takes_its_lines_with_it(sent: Sent, worker: Worker) -> None:
    sent.scripts(["now", *(f"partial text delay=30 tokens=900 n{n}" for n in range(8))])
    wait_until(lambda: len(sent.results()) == 1, report=worker.text)
    sent.batches.stop(sent.batch.id, Ending.CANCELLED)
    entries = sent.ended(9, worker)
    assert [answer_of(entries[n]) for n in range(2, 10)] == ["batch_cancelled"] * 8
    assert entries[2]["error"].get("partial") is not None, "what ran keeps what there is"
    assert "partial" not in entries[9]["error"]
    assert sent.counted("completed", "failed", "lines_live") == [1, 8, 0]


def test_a_deadline_in_the_middle(settings: Settings, workers: Workers) -> None:
    sent = Sent.begun(settings, deadline=time.time() + 4)
    worker = workers.model(settings)
    sent.scripts(["now", *(f"partial text delay=30 tokens=900 n{n}" for n in range(8))])
    entries = sent.ended(9, worker)
    assert answer_of(entries[1]) == "now"
    assert {answer_of(entries[n]) for n in range(2, 10)} == {"batch_expired"}
    sent.store.close()


def test_sigterm_gives_what_waits_to_others_at_once_and_lets_running_lines_end(
    sent: Sent, settings: Settings, worker: Worker, workers: Workers
) -> None:
    sent.scripts([f"delay=1 n{n}" for n in range(20)])
    wait_until(lambda: len(sent.results()) > 0, report=worker.text)
    assert worker.terminate() == 0
    done = len(sent.results())
    assert settings.slots <= done < 20
    assert len(sent.sent()) == 1, "the others, in a window of their own"
    workers.model(settings)
    sent.ended(20)
    assert sent.counted("completed", "failed") == [20, 0]


def test_sigterm_hands_back_lines_that_do_not_end_in_time(
    sent: Sent, settings: Settings, worker: Worker, workers: Workers
) -> None:
    [window] = sent.scripts([f"delay=8 n{n}" for n in range(settings.slots)])
    wait_until(lambda: sent.record(window).get("opened", "0") != "0", report=worker.text)
    assert worker.terminate() == 0
    assert (sent.record(window)["status"], sent.record(window)["attempts"]) == ("queued", "0")
    workers.model(settings)
    sent.ended(settings.slots)


def test_a_window_that_was_taken_over_is_dropped(sent: Sent, worker: Worker) -> None:
    """The claim is lost while this worker still computes: its ends must not be written."""
    [window] = sent.scripts(["mine delay=5", "mine delay=5"])
    wait_until(lambda: sent.record(window).get("opened") == "2", report=worker.text)
    worker.process.send_signal(signal.SIGSTOP)  # else it may be the first to claim it again
    assert sent.windows.release(window, int(sent.record(window)["fence"]))
    theirs = sent.claim(window)
    worker.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "not ours any more" in worker.text(), report=worker.text)
    sent.advance(theirs, 1)
    sent.advance(theirs, 2, 0, 1)
    assert sent.codes() == {1: None, 2: None}
    assert "response" not in sent.ended(2)[1], "not what the first one made"


def test_results_wait_for_redis(redis_server: RedisServer, sent: Sent, worker: Worker) -> None:
    sent.scripts([f"delay=0.5 n{n}" for n in range(8)])
    wait_until(lambda: len(sent.results()) > 0, report=worker.text)
    redis_server.freeze()
    time.sleep(1.5)
    redis_server.thaw()
    sent.ended(8, worker)


def lines_after_kills(settings: Settings, workers: Workers, sent: Sent, lines: int) -> dict[int, str | None]:
    """The answers of so many lines. Workers that are killed are replaced."""
    while len(sent.results()) < lines:
        worker = workers.model(settings, ready=False)
        wait_until(
            lambda worker=worker: sent.number_ended() == lines or worker.process.poll() is not None,
            report=worker.text,
        )
        if worker.process.poll() is not None:
            assert worker.process.poll() == -signal.SIGKILL, worker.text()
    return sent.texts(lines)


@pytest.mark.parametrize("place", [1, 3, 6])
def test_a_line_that_kills_workers_ends_alone(
    redis_server: RedisServer, workers: Workers, place: int
) -> None:
    settings = fast_settings(redis_server, max_attempts=3, lease_ms=1500, slots=2)
    sent = Sent.begun(settings)
    lines = [f"delay=0.2 n{n}" for n in range(1, 7)]
    lines[place - 1] = "die=1"
    sent.scripts(lines)
    found = lines_after_kills(settings, workers, sent, 6)
    assert {n for n, text in found.items() if text == "worker_lost"} == {place}
    assert sent.counted("completed", "failed") == [5, 1]
    sent.store.close()


def test_a_last_attempt_goes_before_lines_that_waited_for_longer(
    redis_server: RedisServer, workers: Workers
) -> None:
    """It has the worker to itself, so that none of the others can begin."""
    settings = fast_settings(redis_server, max_attempts=2, slots=8)
    sent = Sent.begun(settings)
    [suspect] = sent.scripts(["suspect"])
    sent.advance(sent.claim(suspect), 1)
    wait_until(lambda: sent.number_ended() == 0 and sent.record(suspect)["status"] == "queued")
    messages = sent.store.db.redis.lrange(f"{settings.key_prefix}medusaq.windows", 0, 0)
    sent.store.db.redis.delete(f"{settings.key_prefix}medusaq.windows")
    worker = workers.model(settings)
    busy = queued(sent.store, "delay=2 busy")
    wait_until(lambda: sent.store.get(busy).status is Status.RUNNING)
    sent.store.db.redis.rpush(f"{settings.key_prefix}medusaq.windows", *messages)
    wait_until(lambda: sent.record(suspect)["status"] == "running", report=worker.text)
    prompts = [f"line {number}" for number in range(2, 18)]  # more than slots and those ahead
    sent.scripts(prompts[:8], prompts[8:], first=2)
    time.sleep(0.5)
    assert sent.sent(), "the second is left to other workers; the first was asked for before"
    found = sent.texts(17, worker)
    assert found == {1: "suspect", **{number: f"line {number}" for number in range(2, 18)}}
    sent.store.close()


def test_kill_9_costs_only_lines_that_have_not_ended(
    sent: Sent, settings: Settings, worker: Worker, workers: Workers
) -> None:
    sent.scripts([f"delay=0.4 n{n}" for n in range(24)])
    wait_until(lambda: len(sent.results()) >= 8, report=worker.text)
    worker.kill()
    workers.model(settings)
    sent.ended(24)
    assert sent.counted("completed", "failed", "lines_live") == [24, 0, 0]


def test_an_engine_that_closes_stops_its_worker_and_its_lines_count_as_lost(
    redis_server: RedisServer, workers: Workers
) -> None:
    settings = fast_settings(redis_server, max_attempts=1, lease_ms=600)
    sent = Sent.begun(settings)
    worker = workers.model(settings)
    sent.scripts(["good", "close=1 delay=5"])
    assert worker.process.wait(15) == 1
    assert sent.texts(2) == {1: "good", 2: "worker_lost"}, "what has ended is written"
    sent.store.close()
