"""Runs the windows of a model worker: one thread opens lines, gives them to the engine and writes their ends.

All windows are changed on that thread; what other threads have to say (a claimed window, a line that has
ended, what a heartbeat heard) comes to it as calls. It keeps the engine's slots full across windows, and
somewhat more lines in the engine, so that a slot that gets free does not wait for Redis.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from celery.exceptions import Ignore, Reject

from engine import Completion, EngineClosed, EngineService
from tasks.base.settings import SLOTS_PER_CLAIM, WINDOWS_HELD, Settings
from tasks.base.telemetry.tracing import Tracing
from tasks.records.job import Priority
from tasks.records.window import Advanced, Running, Standing
from tasks.store.jobs import ClaimRejection, new_claim_id
from tasks.store.windows import WindowStore
from tasks.worker.conversions import check_model, to_request
from tasks.worker.exclusive_gate import ExclusiveGate
from tasks.worker.heartbeat import Heartbeat
from tasks.worker.intake import Arrivals
from tasks.worker.metrics import WINDOW_LINES, WINDOWS_TOTAL
from tasks.worker.retrying import retry_until_available
from tasks.worker.windows.held_window import GROUP_S, HeldWindow
from tasks.worker.windows.line_rate import LineRate
from tasks.worker.windows.lines import OpenLine, completed, opened, refused

log = logging.getLogger(__name__)

AHEAD_S = 0.25  # of lines in the engine beyond its slots
MOST_AHEAD = 64
RESERVED = 8  # one slot in so many, for bulk work beside interactive jobs
RESERVE_S = 0.5  # of lines in this process, below which it reads the next window
EXCESS_S = 2.0  # of lines beyond twice the slots, which other workers may run sooner
LARGE_REQUEST = 16 * 1024  # bytes, whose tokenizing takes milliseconds
PREPARING_THREADS = 2
ENDED = "ended before it ran"


class WindowRunner:
    """run() is called by Celery's threads; wants() and arrived() by the thread that reads messages."""

    def __init__(
        self,
        settings: Settings,
        store: WindowStore,
        engine: EngineService,
        gate: ExclusiveGate,
        heartbeat: Heartbeat,
        tracing: Tracing,
        worker: tuple[str, str],
        engine_lost: Callable[[str], None],
    ) -> None:
        """worker: its id and the model that it serves. engine_lost: stop this worker, as the engine closed
        under the window of this id.
        """
        self._settings, self._store, self._engine, self._gate = settings, store, engine, gate
        self._heartbeat, self._tracing = heartbeat, tracing
        self._worker_id, self._model = worker
        self._engine_lost = engine_lost
        self._slots = engine.info.slots
        self._spare = max(1, self._slots // SLOTS_PER_CLAIM)
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._windows: list[HeldWindow] = []  # whose lines may be opened, in the order of their claims
        self._in_engine = 0
        self._rate = LineRate(self._slots)
        self._lock = threading.Lock()  # of the three that follow
        self._held: dict[str, HeldWindow] = {}
        self._arriving = Arrivals()
        self._last_lines = self._slots  # of the window that was claimed last
        self._closing = False
        self._preparing = ThreadPoolExecutor(PREPARING_THREADS, thread_name_prefix="prepare")
        self._thread = threading.Thread(target=self._loop, name="windows", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """After the engine, under which what is still held is lost."""
        self._closing = True
        self._inbox.put(lambda: None)
        if self._thread.is_alive():
            self._thread.join()
        self._preparing.shutdown(cancel_futures=True)

    # For the thread that reads messages

    @property
    def lines_per_s(self) -> float:
        """0 while it was not measured."""
        return self._rate.per_s

    def arrived(self, window_id: str) -> None:
        """A message of this window was read."""
        with self._lock:
            self._arriving.add(window_id)

    def reconnected(self) -> None:
        """What was read before and is not taken up yet is forgotten: the reconciler sends it again."""
        with self._lock:
            self._arriving.clear()

    def wants(self) -> bool:
        """Whether to read another window: soon there will be less than RESERVE_S of work in this process.

        A batch ends with windows of a few lines: none is read for later, as another worker may run it now.
        """
        with self._lock:
            arriving, held, last_lines = len(self._arriving), tuple(self._held.values()), self._last_lines
        if len(held) + arriving >= WINDOWS_HELD or self._heartbeat.draining or self._gate.exclusive:
            return False
        reserved = -(-self._slots // RESERVED)  # interactive jobs never take all of a worker
        lines = (
            sum(window.unended for window in held)
            + arriving * max(self._spare, last_lines)
            + self._heartbeat.jobs_running(Priority.BULK)
            + min(self._heartbeat.jobs_running(Priority.INTERACTIVE), self._slots - reserved)
        )
        spare = self._spare if last_lines >= self._spare else 0
        return lines < self._slots + spare + self._rate.per_s * RESERVE_S

    # Celery's threads

    def run(self, window_id: str) -> str:
        """Run a window to its end and return the line that Flower shows.

        Raises Ignore when it is not this worker's (any more), Reject to put the message back.
        """
        window = self._claim(window_id)
        if window is None:
            return ENDED
        self._heartbeat.add(window)
        try:
            if not window.claim.isolated:
                return self._run(window)
            with self._gate.acquire(True, lambda: window.given_up, window.left_s):
                return self._run(window)
        finally:
            self._heartbeat.remove(window)
            with self._lock:
                if self._held.get(window_id) is window:  # not a later claim of what was handed back
                    del self._held[window_id]

    def _claim(self, window_id: str) -> HeldWindow | None:
        """None for one that has ended since its message was sent."""
        try:
            if self._heartbeat.draining:
                raise Reject("this worker is shutting down", requeue=True)
            token = new_claim_id()
            claim = retry_until_available(
                self._heartbeat.pause,
                lambda: self._store.claim(window_id, self._worker_id, token, model=self._model),
            )
            if claim is ClaimRejection.DONE:
                return None
            if isinstance(claim, ClaimRejection):
                log.info("dropped a message of %s: %s", window_id, claim)
                raise Ignore
            WINDOW_LINES.observe(len(claim.lines))
            window = HeldWindow(claim, self._look_at, self._hand_back)
            with self._lock:
                self._held[window_id] = window
                self._last_lines = len(claim.lines)
            return window
        finally:
            with self._lock:
                self._arriving.discard(window_id)

    def _run(self, window: HeldWindow) -> str:
        self._inbox.put(partial(self._windows.append, window))
        self._look_at(window)  # it may have been given up while it waited at the gate
        return window.over.result()

    # Heartbeats

    def _look_at(self, window: HeldWindow) -> None:
        self._inbox.put(partial(self._give_up, window))
        self._gate.recheck()  # it may wait there

    def _hand_back(self, window: HeldWindow) -> bool:
        return self._store.release(window.id, window.fencing_token)

    # The thread

    def _loop(self) -> None:
        while not self._closing:
            try:
                self._take_calls()
                if self._heartbeat.draining:
                    self._drain()
                else:
                    self._hand_back_excess()
                self._advance(self._openings())
            except Ignore:  # Redis is away, and there is no more time
                self._abandon()
            except Exception:
                log.exception("windows of this worker are given up: their leases run out")
                self._abandon()
        self._abandon()

    def _take_calls(self) -> None:
        """Those that wait, or the next one, or none within the time after which ends are written."""
        try:
            self._inbox.get(timeout=GROUP_S if self._windows else None)()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            return

    def _openings(self) -> Counter[HeldWindow]:
        """How many further lines to open of each window, for which the gate is entered.

        Owners have the engine in proportion to the lines that this worker holds of them, so in the shares in
        which the leader sent them; of one owner's windows those go first that were claimed first.
        """
        further: Counter[HeldWindow] = Counter()
        ahead = max(self._spare, min(MOST_AHEAD, math.ceil(self._rate.per_s * AHEAD_S)))
        free = self._slots + ahead - self._in_engine
        if free <= ahead // 2:  # lines are opened in groups, too
            return further
        load: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for window in self._windows:
            load[window.claim.owner] += len(window.running)
            held[window.claim.owner] += window.unended
        able = [window for window in self._windows if window.may_open(self._slots)]
        able = [window for window in able if window.claim.isolated] or able  # it has the gate to itself
        while able and free > 0:
            window = min(able, key=lambda one: load[one.claim.owner] / held[one.claim.owner])
            most = min(free, window.may_open(self._slots) - further[window])
            lines = 1 if len({one.claim.owner for one in able}) > 1 else most
            further[window] += lines
            load[window.claim.owner] += lines
            free -= lines
            if lines == most:
                able.remove(window)
        return Counter(
            {one: n for one, n in further.items() if one.claim.isolated or self._gate.try_enter(n)}
        )

    def _advance(self, further: Counter[HeldWindow], all_ends: bool = False) -> None:
        """Write what is due, or all that has ended, open further lines, and start those."""
        due = [w for w in self._windows if further[w] or w.is_due() or (all_ends and w.has_ends)]
        if not due:
            return
        groups = [window.next_group(further[window], self._running(window)) for window in due]
        answers = retry_until_available(self._heartbeat.pause, lambda: self._store.advance(groups))
        for window, answer in zip(due, answers, strict=True):
            fresh = self._answered(window, answer)
            self._leave_gate(window, further[window] - len(fresh))
            for index in fresh:
                self._start(window, index)

    def _running(self, window: HeldWindow) -> Running:
        progress = self._engine.progress(window.running)
        return Running(progress.running, progress.tokens)

    def _answered(self, window: HeldWindow, answer: Advanced) -> range:
        """The indexes of the lines that may begin."""
        if answer.standing is Standing.GONE and window.unended == 0:  # an earlier answer was lost
            self._finish(window)
        elif answer.standing is not Standing.OK:
            window.disowned = True
            self._give_up(window)
        else:
            fresh = window.answered(answer)
            if answer.left == 0:
                self._finish(window)
            return fresh
        return range(0)

    def _start(self, window: HeldWindow, index: int) -> None:
        line = opened(window.claim, index, window.waited_s)
        window.running[line.request_id] = line
        self._in_engine += 1
        self._rate.begin()
        if line.claim.request.get("response_format") is None and line.bytes <= LARGE_REQUEST:
            self._submit(window, line)
        else:  # it may take long, as while a grammar is compiled
            self._preparing.submit(self._submit, window, line)

    def _submit(self, window: HeldWindow, line: OpenLine) -> None:
        try:
            check_model(line.claim.model, self._model)
            future = self._engine.submit(to_request(line.claim, line.request_id, self._settings))
        except Exception as error:
            future = Future()
            future.set_exception(error)
        future.add_done_callback(lambda done: self._inbox.put(partial(self._ended, window, line, done)))
        if window.given_up:  # since it was opened
            self._engine.cancel(line.request_id)

    def _ended(self, window: HeldWindow, line: OpenLine, future: Future[Completion]) -> None:
        self._in_engine -= 1
        del window.running[line.request_id]
        self._leave_gate(window, 1)
        if window not in self._windows:
            return
        problem = future.exception()
        if isinstance(problem, EngineClosed):
            self._lose_engine(window)
            return
        try:
            end = completed(line, future.result(), self._model) if problem is None else None
        except Exception as error:
            end, problem = None, error
        if end is None:
            assert isinstance(problem, Exception)
            end = refused(line, problem, self._model)
        window.ended(end)
        self._rate.count(1)

    def _leave_gate(self, window: HeldWindow, lines: int) -> None:
        if lines and not window.claim.isolated:
            self._gate.leave(lines)

    def _give_up(self, window: HeldWindow) -> None:
        """As a heartbeat heard, or the store said: end what runs, and forget it if it is not ours."""
        if not window.given_up or window not in self._windows:
            return
        for request_id in tuple(window.running):
            self._engine.cancel(request_id)
        if window.disowned:
            log.warning("dropped %s, attempt %d: not ours any more", window.id, window.claim.attempts)
            self._forget(window)

    def _drain(self) -> None:
        """Give lines that wait to other workers at once. Those that run have some time to end."""
        for window in [one for one in self._windows if one.waiting]:
            self._return_lines(window, window.opened)

    def _hand_back_excess(self) -> None:
        """Give lines to other workers that wait here for long, those of the owner with the most first."""
        most = 2 * self._slots + int(self._rate.per_s * EXCESS_S)
        excess = sum(window.unended for window in self._windows) - most
        if excess < self._slots:  # a few are not worth a window
            return
        waiting: Counter[str] = Counter()
        for window in self._windows:
            waiting[window.claim.owner] += 0 if window.claim.isolated else window.waiting
        owner, _ = max(waiting.items(), key=lambda item: item[1])
        for window in reversed([*self._windows]):
            if window.claim.owner == owner and window.waiting and not window.claim.isolated and excess > 0:
                lines = min(excess, window.waiting)
                excess -= lines
                self._return_lines(window, window.count - lines)

    def _return_lines(self, window: HeldWindow, start: int) -> None:
        """Queue again those from index `start` on, which are not open. Their attempt does not count."""
        call = self._hand_back if start == 0 else partial(self._split, start)
        retry_until_available(self._heartbeat.pause, partial(call, window))
        if start == 0:
            self._forget(window, "returned")
        window.count = start
        if start and not window.unended and not window.has_ends:  # all the others are written
            self._finish(window)

    def _split(self, start: int, window: HeldWindow) -> str | None:
        return self._store.split(window.id, window.fencing_token, start)

    def _lose_engine(self, window: HeldWindow) -> None:
        """The windows keep their leases until these run out, so that a line that kills engines is counted."""
        self._engine_lost(window.id)
        self._advance(Counter(), all_ends=True)
        self._abandon()

    def _abandon(self) -> None:
        for window in tuple(self._windows):
            self._forget(window)

    def _forget(self, window: HeldWindow, outcome: str = "lost") -> None:
        WINDOWS_TOTAL.labels(outcome).inc()
        self._remove(window)
        window.over.set_exception(Ignore())

    def _finish(self, window: HeldWindow) -> None:
        WINDOWS_TOTAL.labels("completed").inc()
        self._remove(window)
        window.over.set_result(window.summary())
        self._tracing.window(window.claim, window.count, window.statuses, window.output_tokens)

    def _remove(self, window: HeldWindow) -> None:
        self._windows.remove(window)
        if not self._windows:
            self._rate.pause()
