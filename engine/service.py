"""The engine on a thread of its own: submit from anywhere, get a future."""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.engine import Engine, ModelInfo
from engine.errors import EngineClosed, EngineError
from engine.metrics import Metrics
from engine.model import Tokens
from engine.request import Completion, Request
from engine.sources import speculate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Submitted:
    request: Request
    prompt: Tokens
    arrived: float


@dataclass(frozen=True, slots=True)
class _Cancelled:
    request_id: str


_Message = _Submitted | _Cancelled | None  # None: look at the closed flag


class EngineService:
    """Runs Engine.step() for as long as there is work."""

    def __init__(self, config: EngineConfig) -> None:
        """Load the model, measure how it runs here, start the thread.

        Raises ModelLoadError, or HeadsLoadError for heads that were asked for.
        """
        self._engine = Engine(config)
        if config.speculation and self._engine.model.can_share_prefixes:
            speculate(self._engine, config)
        self._window_s = config.batch_window_ms / 1e3
        self._metrics = Metrics(config.slots)
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._futures: dict[str, Future[Completion]] = {}
        self._lock = threading.Lock()  # guards _futures and _closed together
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    def submit(self, request: Request) -> Future[Completion]:
        """Queue a request. Every outcome, refusals included, comes through the future."""
        future: Future[Completion] = Future()
        arrived = time.monotonic()
        try:
            prompt = self._engine.encode(request)
            with self._lock:
                if self._closed:
                    raise EngineClosed("the engine is shut down")
                if request.id in self._futures:
                    raise EngineError(f"request {request.id} is already running", code="duplicate_request")
                self._futures[request.id] = future
        except EngineError as error:
            future.set_exception(error)
            return future
        self._inbox.put(_Submitted(request, prompt, arrived))
        return future

    def cancel(self, request_id: str) -> bool:
        """Ask for an end within two steps; the future then holds the partial completion."""
        known = request_id in self._futures
        if known:
            self._inbox.put(_Cancelled(request_id))
        return known

    def metrics(self) -> dict[str, float]:
        """Counters since the start, gauges of now; names carry their unit."""
        scheduler = self._engine.scheduler
        return {
            "running": len(scheduler.running),
            "waiting": scheduler.waiting,
            "kv_cells_used": self._engine.cache.used,
            **self._metrics.snapshot(),
        }

    def close(self) -> None:
        """Stop after the current step; requests still inside get EngineClosed."""
        with self._lock:
            self._closed = True
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        reason = "the engine was shut down"
        try:
            while not self._closed:
                self._turn()
        except Exception:
            log.exception("the engine stopped on an error of its own")
            reason = "the engine stopped on an internal error"
        with self._lock:
            self._closed = True
        for request_id in tuple(self._futures):
            self._resolve(request_id, EngineClosed(reason))

    def _turn(self) -> None:
        if self._engine.idle:
            self._wait_for_company()
        self._take_all()
        began = time.perf_counter()
        report = self._engine.step()
        self._metrics.observe(report, time.perf_counter() - began)
        for ended in report.ended:
            self._resolve(ended.request_id, ended.outcome)

    def _wait_for_company(self) -> None:
        """Block until something arrives, then for the batch window or until the slots are full."""
        self._take(self._inbox.get())
        closes = time.monotonic() + self._window_s
        while self._engine.scheduler.waiting < self.info.slots:
            try:
                self._take(self._inbox.get(timeout=max(0.0, closes - time.monotonic())))
            except queue.Empty:
                return

    def _take_all(self) -> None:
        while True:
            try:
                self._take(self._inbox.get_nowait())
            except queue.Empty:
                return

    def _take(self, message: _Message) -> None:
        if isinstance(message, _Submitted):
            self._engine.add(message.request, message.prompt, message.arrived)
        elif isinstance(message, _Cancelled):
            self._engine.cancel(message.request_id)

    def _resolve(self, request_id: str, outcome: Completion | EngineError) -> None:
        with self._lock:
            future = self._futures.pop(request_id)
        if isinstance(outcome, EngineError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def load(config: EngineConfig) -> EngineService:
    """A running engine for these settings. Raises ModelLoadError or HeadsLoadError."""
    return EngineService(config)
