"""A scripted engine with the surface of EngineService, for tests and benchmarks of the job system.

Load it with MEDUSAQ_ENGINE_FACTORY="tests.scripted:load". The prompt is the script, as words
`name=value` in any order; every other word is echoed as the text of the answer:

    delay=0.5     seconds from admission to the end (default 0: answers at once, in submit itself)
    tokens=8      completion tokens (default 1); spread evenly over the delay
    fail=CODE     the request fails with this code at its end, and param=NAME is the field at fault
    die=1         the process kills itself with SIGKILL on admission
    close=1       the engine closes on admission

and, unless decoding is normal:

    steps=4       steps that gave the tokens (default: one each)
    drafted=medusa:10:6,lookup:4:1   draft tokens verified and accepted, by source
    faster=2      the delay divided by this
    differs=1     another text

MEDUSAQ_SCRIPTED_DRAFT_SOURCES names the draft sources, as in "medusa,lookup" (default: none).
MEDUSAQ_SCRIPTED_LOG names a file that gets a line "start ID" and "end ID REASON" per request.
MEDUSAQ_SCRIPTED_LOAD_ERROR makes load() fail with this message.
"""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from engine import (
    Completion,
    Decoding,
    Drafted,
    EngineClosed,
    EngineConfig,
    EngineError,
    FinishReason,
    ModelLoadError,
    Request,
    RequestRefused,
    Timing,
    TokenLogprob,
)
from engine.engine import ModelInfo

LOG = os.environ.get("MEDUSAQ_SCRIPTED_LOG")
DRAFT_SOURCES = tuple(filter(None, os.environ.get("MEDUSAQ_SCRIPTED_DRAFT_SOURCES", "").split(",")))
LOAD_ERROR = os.environ.get("MEDUSAQ_SCRIPTED_LOAD_ERROR")
MODEL_NAME = "scripted"
CONTEXT_LENGTH = 2048
SPECULATIVE = ("steps", "drafted", "faster", "differs")
METRICS = (
    "running",
    "waiting",
    "steps_total",
    "batch_occupancy",
    "generated_tokens_total",
    "prefill_tokens_total",
    "prefix_hit_tokens_total",
    "prompt_tokens_total",
    "prefix_hit_rate",
    "tokens_per_s",
    "kv_cells_used",
    "step_ms",
    "failed_decodes_total",
)


@dataclass(order=True)
class _Entry:
    """A request: ordered in the waiting line by priority and arrival."""

    priority: int
    number: int
    request: Request = field(compare=False)
    future: Future[Completion] = field(compare=False)
    script: dict[str, str] = field(compare=False)
    text: str = field(compare=False)
    arrived: float = field(compare=False)
    admitted: float | None = field(default=None, compare=False)
    stop: FinishReason | None = field(default=None, compare=False)

    @property
    def delay(self) -> float:
        return float(self.script.get("delay", 0)) / float(self.script.get("faster", 1))

    @property
    def drafted(self) -> dict[str, Drafted]:
        sources = [source.split(":") for source in self.script.get("drafted", "").split(",") if source]
        return {name: Drafted(int(verified), int(accepted)) for name, verified, accepted in sources}


class ScriptedEngine:
    """Runs `slots` requests at once; lower priority values first, then by arrival."""

    def __init__(self, config: EngineConfig) -> None:
        self.info = ModelInfo(
            name=MODEL_NAME,
            path="/scripted",
            context_length=CONTEXT_LENGTH,
            slots=config.slots,
            kv_cells=config.kv_cells,
            batch_invariant=config.batch_invariant,
            quantization="F32",
            draft_sources=DRAFT_SOURCES,
        )
        self._slots = config.slots
        self._numbers = itertools.count()
        self._waiting: list[_Entry] = []
        self._running: list[_Entry] = []
        self._generated = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="scripted-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        prompt = request.prompt if request.prompt is not None else (request.messages or ())[-1]["content"]
        words = prompt.split()
        script = dict(word.split("=", 1) for word in words if "=" in word)
        if request.decoding is Decoding.NORMAL:
            script = {name: value for name, value in script.items() if name not in SPECULATIVE}
        text = " ".join(word for word in words if "=" not in word)
        entry = _Entry(
            request.priority, next(self._numbers), request, future, script, text, arrived=time.monotonic()
        )
        with self._changed:
            if self._closed:
                future.set_exception(EngineClosed("the scripted engine is closed"))
                return future
            if request.decoding is Decoding.MEDUSA and "medusa" not in DRAFT_SOURCES:
                future.set_exception(RequestRefused("no heads here", code="no_heads", param="decoding"))
                return future
            heapq.heappush(self._waiting, entry)
            self._admit()
            instant = not script and entry in self._running
            if instant:
                self._running.remove(entry)
            else:
                self._changed.notify()
        if instant:
            self._end(entry, FinishReason.STOP)
        return future

    def cancel(self, request_id: str) -> bool:
        with self._changed:
            for entry in (*self._running, *self._waiting):
                if entry.request.id == request_id:
                    entry.stop = FinishReason.CANCELLED
                    self._changed.notify()
                    return True
        return False

    def metrics(self) -> dict[str, float]:
        with self._changed:
            running, waiting = len(self._running), len(self._waiting)
        known = {
            "running": float(running),
            "waiting": float(waiting),
            "generated_tokens_total": float(self._generated),
        }
        return dict.fromkeys(METRICS, 0.0) | known

    def close(self) -> None:
        with self._changed:
            self._closed = True
            left = [*self._running, *self._waiting]
            self._running, self._waiting = [], []
            self._changed.notify()
        for entry in left:
            entry.future.set_exception(EngineClosed("the scripted engine was closed"))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now, unix = time.monotonic(), time.time()
                for entry in (*self._running, *self._waiting):
                    deadline = entry.request.deadline
                    if deadline is not None and deadline <= unix:
                        entry.stop = entry.stop or FinishReason.EXPIRED
                ended = [e for e in self._running if e.stop or now >= (e.admitted or now) + e.delay]
                ended += [e for e in self._waiting if e.stop]
                self._running = [e for e in self._running if e not in ended]
                self._waiting = [e for e in self._waiting if e not in ended]
                heapq.heapify(self._waiting)
                self._admit()
                if not ended:
                    self._changed.wait(self._sleep(now, unix))
            for entry in ended:
                self._end(entry, entry.stop or FinishReason.STOP)

    def _sleep(self, now: float, unix: float) -> float | None:
        """Seconds to the next end or deadline; None for nothing to wait for."""
        times = [(e.admitted or now) + e.delay - now for e in self._running]
        everyone = (*self._running, *self._waiting)
        times += [e.request.deadline - unix for e in everyone if e.request.deadline is not None]
        return max(0.0, min(times)) if times else None

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            entry = heapq.heappop(self._waiting)
            entry.admitted = time.monotonic()
            _write(f"start {entry.request.id}")
            if "die" in entry.script:
                os.kill(os.getpid(), signal.SIGKILL)
            if "close" in entry.script:
                threading.Thread(target=self.close, daemon=True).start()
            self._running.append(entry)

    def _end(self, entry: _Entry, reason: FinishReason) -> None:
        _write(f"end {entry.request.id} {reason}")
        if "fail" in entry.script and reason is FinishReason.STOP:
            entry.future.set_exception(
                EngineError("as the script says", code=entry.script["fail"], param=entry.script.get("param"))
            )
            return
        now = time.monotonic()
        admitted = entry.admitted or now
        whole = int(entry.script.get("tokens", 1))
        share = 1.0 if reason is FinishReason.STOP else min(1.0, (now - admitted) / (entry.delay or 1.0))
        tokens = round(whole * share)
        self._generated += tokens
        wanted = entry.request.sampling.logprobs
        entry.future.set_result(
            Completion(
                request_id=entry.request.id,
                text=entry.text + " indeed" * ("differs" in entry.script),
                tokens=tuple(range(tokens)),
                finish_reason=reason,
                prompt_tokens=len(entry.text.split()),
                cached_tokens=0,
                completion_tokens=tokens,
                timing=Timing(
                    queue_s=admitted - entry.arrived,
                    first_token_s=now - entry.arrived if tokens else None,
                    total_s=now - entry.arrived,
                ),
                logprobs=None if wanted is None else (_token(wanted),) * tokens,
                steps=int(entry.script.get("steps", tokens)),
                drafted=entry.drafted,
            )
        )


def _token(alternatives: int) -> TokenLogprob:
    return TokenLogprob(7, b"x", -0.5, ((7, b"x", -0.5),) * min(1, alternatives))


def _write(line: str) -> None:
    if LOG:
        with Path(LOG).open("a", encoding="utf-8") as log:
            log.write(line + "\n")


def load(config: EngineConfig) -> ScriptedEngine:
    """The factory."""
    if LOAD_ERROR:
        raise ModelLoadError(LOAD_ERROR)
    return ScriptedEngine(config)
