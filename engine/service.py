"""Runs the engine on a thread of its own: submit() returns a future, text is streamed to callbacks."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from engine.base.config import EngineConfig
from engine.base.errors import EngineClosed, EngineError
from engine.base.request import Completion, FinishReason, OnText, Progress, Request
from engine.core.engine import Engine, ModelInfo
from engine.core.sequence import SequenceState
from engine.serving.metrics import EngineMetrics, Metrics
from engine.serving.text_listener import Listener
from engine.speculative.tuning import Tuning
from engine.text import chat_templates
from engine.weights.format_selection import open_at_once

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Cancelled:
    request_id: str


_Message = SequenceState | _Cancelled | None  # None: check what has changed


@dataclass(slots=True)
class _Entry:
    """A request inside the engine."""

    sequence: SequenceState
    future: Future[Completion]
    listeners: list[Listener] = field(default_factory=list)


class EngineService:
    """Runs Engine.step() for as long as there is work."""

    def __init__(self, config: EngineConfig) -> None:
        """Load the model and start the thread. Its speed on this machine is measured later, if not known.

        Raises ModelLoadError, or HeadsLoadError for heads named in the config.
        """
        if config.chat_template:
            chat_templates.read(config.chat_template)  # fails before the model is loaded, which takes long
        model, settled = open_at_once(config)
        self._engine = Engine(config, model)
        self._window_s = config.batch_window_ms / 1e3
        self._metrics = Metrics(self._engine.info.slots)
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._entries: dict[str, _Entry] = {}
        self._streaming: dict[str, _Entry] = {}  # entries with listeners
        self._held: list[SequenceState] = []  # bulk requests that Tuning.holds_bulk()
        self._preparing: dict[str, threading.Event] = {}  # requests before they have an entry; set: cancelled
        self._lock = threading.Lock()  # guards the entries, their listeners, _preparing and _closed together
        self._closed = False
        self._tuning = Tuning(self._engine, config, settled, wake=lambda: self._inbox.put(None))
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ModelInfo:
        return replace(self._engine.info, measuring=self._tuning.under_way)

    def submit(self, request: Request, on_text: OnText | None = None) -> Future[Completion]:
        """Queue a request. Every outcome, refusals included, comes through the future.

        on_text: called on the engine's thread, which it must not block, with each piece of text once no stop
        string can remove it. The last call comes before the future's result; joined, the pieces are its text.
        A callback that raises is not called again.
        """
        future: Future[Completion] = Future()
        try:
            cancelled = self._begin_preparing(request.id)
            try:
                sequence = self._prepare(request, cancelled)
            except BaseException:
                with self._lock:
                    del self._preparing[request.id]
                raise
            self._enter(sequence, future, on_text)
        except EngineError as error:
            future.set_exception(error)
        return future

    def _begin_preparing(self, request_id: str) -> threading.Event:
        with self._lock:
            if request_id in self._entries or request_id in self._preparing:
                raise EngineError(f"request {request_id} is already running", code="duplicate_request")
            cancelled = self._preparing[request_id] = threading.Event()
        return cancelled

    def _prepare(self, request: Request, cancelled: threading.Event) -> SequenceState:
        def stopped() -> FinishReason | None:
            if self._closed:
                raise EngineClosed("the engine is shut down")
            if cancelled.is_set():
                return FinishReason.CANCELLED
            late = request.deadline is not None and time.time() >= request.deadline
            return FinishReason.EXPIRED if late else None

        return self._engine.prepare(request, time.monotonic(), stopped)

    def _enter(self, sequence: SequenceState, future: Future[Completion], on_text: OnText | None) -> None:
        request_id = sequence.request.id
        with self._lock:
            cancelled = self._preparing.pop(request_id).is_set()
            if self._closed:
                raise EngineClosed("the engine is shut down")
            if not sequence.finish:
                entry = self._entries[request_id] = _Entry(sequence, future)
                if on_text:
                    self._listen(entry, on_text)
        if sequence.finish:
            future.set_result(sequence.completion(time.monotonic()))
            return
        self._inbox.put(sequence)
        if cancelled:
            self._inbox.put(_Cancelled(request_id))

    def listen(self, request_id: str, on_text: OnText) -> bool:
        """Stream a submitted request to on_text, from its first character on; False for an unknown id."""
        with self._lock:
            entry = self._entries.get(request_id)
            if entry:
                self._listen(entry, on_text)
        return entry is not None

    def _listen(self, entry: _Entry, on_text: OnText) -> None:
        entry.listeners.append(Listener(entry.sequence, on_text))
        self._streaming[entry.sequence.request.id] = entry

    def cancel(self, request_id: str) -> bool:
        """End a request within two steps, with a partial completion. False for an unknown id."""
        with self._lock:
            preparing = self._preparing.get(request_id)
            if preparing:
                preparing.set()
                return True
            known = request_id in self._entries
        if known:
            self._inbox.put(_Cancelled(request_id))
        return known

    def progress(self, request_ids: Iterable[str]) -> Progress:
        """How far these requests are; those that are unknown or wait count nothing."""
        with self._lock:
            known = [self._entries[one].sequence for one in request_ids if one in self._entries]
        sampled = [sequence.sampled for sequence in known if sequence.admitted_at is not None]
        return Progress(len(sampled), sum(sampled))

    def metrics(self) -> EngineMetrics:
        scheduler = self._engine.scheduler
        return self._metrics.snapshot(
            running=len(scheduler.running),
            waiting=scheduler.waiting + len(self._held),
            kv_cells_used=self._engine.layouts.used,
        )

    def close(self) -> None:
        """Stop after the current step; requests still inside get EngineClosed."""
        with self._lock:
            self._closed = True
        self._inbox.put(None)
        self._thread.join()
        self._tuning.close()
        self._engine.close()

    def _run(self) -> None:
        reason = "the engine was shut down"
        try:
            while not self._closed:
                self._run_step()
        except Exception:
            log.exception("the engine stopped on an internal error")
            reason = "the engine stopped on an internal error"
        with self._lock:
            self._closed = True
        for request_id in tuple(self._entries):
            self._resolve(request_id, EngineClosed(reason))

    def _run_step(self) -> None:
        if self._engine.idle and self._held and self._tuning.found:
            self._tuning.adopt()
        self._release_held()
        if self._engine.idle:
            self._wait_for_batch()
        self._take_all()
        if self._engine.idle:
            return
        began = time.perf_counter()
        report = self._engine.step()
        seconds = time.perf_counter() - began
        self._metrics.observe(report, seconds)
        if self._streaming:
            self._deliver_text()
        for ended in report.ended:
            self._resolve(ended.request_id, ended.outcome)
        self._tuning.stepped(seconds)

    def _deliver_text(self) -> None:
        with self._lock:
            listeners = [listener for entry in self._streaming.values() for listener in entry.listeners]
        for listener in listeners:
            listener.deliver()

    def _wait_for_batch(self) -> None:
        """Block until something arrives, or held requests may go on; then for the batch window or until the
        slots are full.
        """
        with self._tuning.idle():
            first = self._first()
        self._take(first)
        closes = time.monotonic() + self._window_s
        while not self._closed and 0 < self._engine.scheduler.waiting < self._engine.info.slots:
            try:
                self._take(self._inbox.get(timeout=max(0.0, closes - time.monotonic())))
            except queue.Empty:
                return

    def _first(self) -> _Message:
        while True:
            try:
                return self._inbox.get(timeout=self._held_s() if self._held else self._tuning.quiet_s)
            except queue.Empty:
                if self._held:
                    return None
                self._tuning.adopt()

    def _held_s(self) -> float:
        """Seconds until one of the held requests goes on, or is past its deadline."""
        deadlines = [s.request.deadline for s in self._held if s.request.deadline is not None]
        return max(0.0, min([self._tuning.first_s, *(deadline - time.time() for deadline in deadlines)]))

    def _take_all(self) -> None:
        while True:
            try:
                self._take(self._inbox.get_nowait())
            except queue.Empty:
                return

    def _take(self, message: _Message) -> None:
        if isinstance(message, SequenceState):
            if message.request.priority > 0 and (self._held or self._tuning.holds_bulk()):
                self._held.append(message)
            else:
                self._engine.add(message)
        elif isinstance(message, _Cancelled) and not self._engine.cancel(message.request_id):
            self._release_held(message.request_id)
            self._engine.cancel(message.request_id)

    def _release_held(self, request_id: str = "") -> None:
        """Queue held requests: all that need not wait any longer, this one, and those past their deadline."""
        if not self._held:
            return
        now, hold = time.time(), self._tuning.holds_bulk()

        def stays(request: Request) -> bool:
            late = request.deadline is not None and now >= request.deadline
            return hold and not late and request.id != request_id

        held = self._held
        self._held = [sequence for sequence in held if stays(sequence.request)]
        for sequence in held:
            if not stays(sequence.request):
                self._engine.add(sequence)

    def _resolve(self, request_id: str, outcome: Completion | EngineError) -> None:
        with self._lock:
            entry = self._entries.pop(request_id)
            self._streaming.pop(request_id, None)
        if isinstance(outcome, EngineError):
            entry.future.set_exception(outcome)
            return
        for listener in entry.listeners:
            listener.deliver(final=True)
        entry.future.set_result(outcome)


def load(config: EngineConfig) -> EngineService:
    """Start an engine with these settings. Raises ModelLoadError or HeadsLoadError."""
    return EngineService(config)
