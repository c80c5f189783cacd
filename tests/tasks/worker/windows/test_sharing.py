"""How windows are divided among workers: none keeps lines that another might run now."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery.exceptions import Ignore

from engine import EngineConfig
from tasks.base.settings import Settings
from tasks.base.telemetry.tracing_setup import begin
from tasks.records.batch import Ending
from tasks.records.job import Priority, Status
from tasks.store.workers import Registry
from tasks.worker.exclusive_gate import ExclusiveGate
from tasks.worker.heartbeat import Heartbeat, RunningJob
from tasks.worker.windows.held_window import HeldWindow
from tasks.worker.windows.runner import MOST_AHEAD, WindowRunner
from tests.support.peers.collector import Collector
from tests.support.scripted import ScriptedEngine
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.batches import claimed
from tests.tasks.helpers.records import WORKER, queued
from tests.tasks.worker.windows.sent import Sent

pytestmark = pytest.mark.stack
LOOK_S = 0.6  # in which a worker that wants a window has claimed it


@pytest.fixture
def eight_slots(redis_server: RedisServer) -> Iterator[tuple[Settings, Sent]]:
    settings = fast_settings(redis_server, slots=8, lease_ms=30_000)
    sent = Sent.begun(settings)
    yield settings, sent
    sent.store.close()


def running_lines(sent: Sent, windows: list[str]) -> int:
    return sum(
        int(record["left"]) for record in map(sent.record, windows) if record.get("status") == "running"
    )


def test_the_last_windows_are_left_to_whoever_has_a_free_slot(
    eight_slots: tuple[Settings, Sent], workers: Workers
) -> None:
    settings, sent = eight_slots
    first = workers.model(settings)
    windows = sent.scripts([f"delay=4 n{n}" for n in range(8)], *([f"delay=1 last{n}"] for n in range(4)))
    wait_until(lambda: running_lines(sent, windows) >= 9, report=first.text)
    time.sleep(LOOK_S)
    assert running_lines(sent, windows) == 9, "one more than it has slots, as the first was not small"
    second = workers.model(settings, ready=False)
    wait_until(lambda: len(sent.results()) >= 3, report=second.text)
    assert sent.number_ended() < 8, "before the first worker had a free slot"
    sent.ended(12, first)


def test_slow_lines_after_fast_ones_are_handed_back(
    eight_slots: tuple[Settings, Sent], workers: Workers
) -> None:
    settings, sent = eight_slots
    worker = workers.model(settings)
    sent.scripts([f"fast{n}" for n in range(200)])
    sent.ended(200, worker)
    [slow] = sent.scripts([f"delay=1 slow{n}" for n in range(100)], first=201)
    wait_until(lambda: sent.record(slow).get("status") == "running", report=worker.text)
    assert sent.record(slow)["count"] == "100"
    most = 2 * settings.slots + MOST_AHEAD  # MOST_AHEAD and the slots' are in the engine by then
    wait_until(lambda: int(sent.record(slow)["count"]) < most, report=worker.text)
    assert sent.sent()
    sent.batches.stop(sent.batch.id, Ending.CANCELLED)
    sent.ended(300, worker)


def test_a_worker_that_is_busy_with_jobs_leaves_windows_to_others(
    eight_slots: tuple[Settings, Sent], workers: Workers
) -> None:
    settings, sent = eight_slots
    worker = workers.model(settings)
    jobs = [queued(sent.store, f"delay=4 n{n}") for n in range(8)]
    wait_until(lambda: all(sent.store.get(job).status is Status.RUNNING for job in jobs), report=worker.text)
    windows = sent.scripts(*([f"w{w}.{n}" for n in range(8)] for w in range(3)))
    wait_until(lambda: running_lines(sent, windows) >= 8, report=worker.text)
    time.sleep(LOOK_S)
    assert running_lines(sent, windows) == 8, "its next lines, and no others"
    assert len(sent.sent()) == 2
    sent.ended(24, worker)


@pytest.fixture
def runner(settings: Settings, sent: Sent) -> Iterator[WindowRunner]:
    """Whose loop the test goes through itself."""
    engine = ScriptedEngine(EngineConfig(model="-", slots=16))
    heartbeat = Heartbeat(
        settings,
        sent.store,
        Registry(sent.store.db, settings.worker_ttl_s),
        WORKER,
        describe=lambda: pytest.fail("it beats"),
        start_stream=lambda _: False,
    )
    made = WindowRunner(
        settings,
        sent.windows,
        engine,  # type: ignore[arg-type]
        ExclusiveGate(),
        heartbeat,
        begin("test"),
        (WORKER, "scripted"),
        engine_lost=lambda window: pytest.fail(f"lost the engine under {window}"),
    )
    yield made
    engine.close()
    made.close()


def test_messages_that_were_read_count_as_more_than_a_line(runner: WindowRunner, sent: Sent) -> None:
    """The first window of a batch has one line, those behind it may have many."""
    [window] = sent.scripts(["first"])
    runner.arrived(window)
    assert runner._claim(window) is not None
    read = 0
    while runner.wants():
        read += 1
        runner.arrived(f"window {read}")
    assert read == 4, "a quarter of its slots each"


def test_a_window_whose_open_lines_are_written_ends_as_the_worker_drains(
    runner: WindowRunner, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = sent.scripts(["one", "two", "three"])
    window = runner._claim(name)
    assert window is not None
    runner._windows.append(window)
    runner._advance(Counter({window: 1}))
    runner._take_calls()
    runner._advance(Counter(), all_ends=True)
    assert (window.unended, window.waiting) == (2, 2)
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        runner._tracing = begin("test")
        runner._drain()
        runner._tracing.close()
        [span] = collector.named("window")
    assert [span.attributes[f"medusaq.window.{name}"] for name in ("lines", "last_line")] == [1, 1]
    assert window.over.result(0).startswith("1 line")
    assert sent.sent() == [name, sent.id_of(2)], "nobody has read the first message"
    assert sent.record(name) == {}


def test_a_window_goes_on_when_redis_forgets_that_it_was_cancelled(runner: WindowRunner, sent: Sent) -> None:
    [name] = sent.scripts(["one", "two"])
    window = runner._claim(name)
    assert window is not None
    runner._heartbeat.add(window)
    sent.batches.stop(sent.batch.id, Ending.CANCELLED)
    runner._heartbeat._beat()
    assert window.given_up
    key = f"{sent.store.db.prefix}batch:{sent.batch.id}"
    sent.store.db.redis.hset(key, mapping={"ending": "", "status": "in_progress"})
    runner._heartbeat._beat()
    assert not window.given_up


def test_excess_lines_of_the_owner_with_the_most_are_handed_back(
    runner: WindowRunner, sent: Sent, settings: Settings
) -> None:
    other = Sent.begun(settings, owner="owner_b")
    [few] = other.scripts([f"b{n}" for n in range(30)])
    first, second = sent.scripts([f"first{n}" for n in range(30)], [f"second{n}" for n in range(30)])
    for name in (first, few, second):
        window = runner._claim(name)
        assert window is not None
        runner._windows.append(window)
    runner._hand_back_excess()
    assert [(window.id, window.count) for window in runner._windows] == [(first, 2), (few, 30)]
    assert sent.record(second)["status"] == "queued", "the one claimed last is handed back whole"
    assert set(sent.sent()) == {first, few, second, sent.id_of(3)}, "nobody reads messages here"
    assert sent.counted("lines_live") == [60]
    other.store.close()


def test_interactive_jobs_leave_some_of_a_worker_to_windows(runner: WindowRunner, sent: Sent) -> None:
    def run(priority: Priority, count: int) -> None:
        for _ in range(count):
            claim = claimed(sent.store, queued(sent.store, "x", priority=priority))
            runner._heartbeat.add(RunningJob(claim, claim.job_id, sent.store, cancel=pytest.fail))

    run(Priority.INTERACTIVE, 40)
    assert runner.wants(), "they count as 14 of its 16 slots, and it reads a window of 4 ahead"
    runner.arrived("window")
    assert not runner.wants()
    runner.reconnected()
    run(Priority.BULK, 5)
    assert runner.wants()
    run(Priority.BULK, 1)
    assert not runner.wants()


def test_a_window_that_is_claimed_again_stays_counted_when_its_first_claim_ends(
    runner: WindowRunner, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = sent.scripts(["one", "two"])
    again: list[HeldWindow | None] = []
    monkeypatch.setattr(runner._heartbeat, "remove", lambda _: again.append(runner._claim(name)))
    with ThreadPoolExecutor(1) as celery:
        first = celery.submit(runner.run, name)
        wait_until(lambda: runner._take_calls() or bool(runner._windows))
        runner._return_lines(runner._windows[0], 0)
        with pytest.raises(Ignore):
            first.result(10)
    assert again[0] is not None
    assert runner._held == {name: again[0]}
