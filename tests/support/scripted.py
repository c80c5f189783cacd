"""A scripted engine with the surface of EngineService, for tests and benchmarks of the job system.

Load it with MEDUSAQ_ENGINE_FACTORY="tests.support.scripted:load". The prompt is the script, as words
`name=value` in any order; every other word is echoed as the text of the answer:

    delay=0.5     seconds from admission to the end (default 0: answers at once, in submit itself)
    tokens=8      completion tokens (default 1); spread evenly over the delay
    fail=CODE     the request fails with this code at its end, and param=NAME is the field at fault
    cut=1         the answer ends for its length
    needs=9       with fewer max_tokens the answer is cut, before its last character
    die=1         the process kills itself with SIGKILL on admission
    close=1       the engine closes on admission
    stream=20     the text so many times over, a token for each of its words
    chunks=4      pieces in which a listener hears the text, evenly over the delay (default: one a token)
    stamp=1       each piece is the Unix time at which it was told
    spans=0:5:lookup,6:9:medusa   characters of the answer that come from drafts, by source
    gap=0.5       the second likeliest token, OTHER at each place, is so many nats less likely than the first

and, unless decoding is normal:

    steps=4       steps that gave the tokens (default: one each)
    drafted=medusa:10:6,lookup:4:1   draft tokens verified and accepted, by source
    faster=2      the delay divided by this
    differs=1     another text, and OTHER as its last token

SCRIPTED_DRAFT_SOURCES names the draft sources, as in "medusa,lookup" (default: none).
SCRIPTED_MODEL is the model's name (default: scripted).
SCRIPTED_LOG names a file that gets a line "start ID" and "end ID REASON" per request.
SCRIPTED_LOAD_ERROR makes load() fail with this message.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine import (
    Completion,
    Decoding,
    Drafted,
    DraftSpan,
    EngineClosed,
    EngineConfig,
    EngineError,
    EngineMetrics,
    FinishReason,
    ModelInfo,
    ModelLoadError,
    OnText,
    Progress,
    Request,
    RequestRefused,
    TextDelta,
    Timing,
    TokenLogprob,
)
from engine.serving.metrics import Metrics

log = logging.getLogger(__name__)

LOG = os.environ.get("SCRIPTED_LOG")
DRAFT_SOURCES = tuple(filter(None, os.environ.get("SCRIPTED_DRAFT_SOURCES", "").split(",")))
LOAD_ERROR = os.environ.get("SCRIPTED_LOAD_ERROR")
MODEL_NAME = os.environ.get("SCRIPTED_MODEL", "scripted")
CONTEXT_LENGTH = 2048
LOGPROB = -0.5  # of every token
OTHER = 1000  # a token id that no other token has
SPECULATIVE = ("steps", "drafted", "faster", "differs")


@dataclass
class _Listener:
    """A callback, and what it has heard: pieces, characters and tokens."""

    on_text: OnText | None
    pieces: int = 0
    characters: int = 0
    tokens: int = 0


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
    listeners: list[_Listener] = field(default_factory=list, compare=False)
    stamps: list[str] = field(default_factory=list, compare=False)

    @property
    def delay(self) -> float:
        return float(self.script.get("delay", 0)) / float(self.script.get("faster", 1))

    @property
    def short(self) -> bool:
        return self.request.sampling.max_tokens < int(self.script.get("needs", 0))

    @property
    def answer(self) -> str:
        if "stamp" in self.script:
            return "".join(self.stamps)
        text = self.text[: -1 if self.short else None] + " indeed" * ("differs" in self.script)
        return (text + " ") * int(self.script["stream"]) if "stream" in self.script else text

    @property
    def tokens(self) -> int:
        words = int(self.script["stream"]) * len(self.text.split()) if "stream" in self.script else 1
        return int(self.script.get("tokens", words))

    @property
    def chunks(self) -> int:
        """Pieces for listeners; one that hears a request without tokens hears its text at the end."""
        return max(1, int(self.script.get("chunks", self.tokens)))

    def share(self, now: float) -> float:
        """Of its answer that there is by now."""
        return min(1.0, (now - (self.admitted or now)) / (self.delay or 1.0))

    def due(self, now: float) -> int:
        """Pieces that have been said by now, but for the last, which comes with the end."""
        since = now - (self.admitted or now)
        return min(self.chunks - 1, int(self.chunks * since / self.delay)) if self.delay else 0

    def next_piece(self) -> float | None:
        """When the next piece is due that some listener has not heard; None for the end."""
        heard = min((one.pieces for one in self.listeners), default=self.chunks)
        if self.admitted is None or heard >= self.chunks - 1:
            return None
        return self.admitted + self.delay * (heard + 1) / self.chunks

    def tell(self, pieces: int, tokens: int) -> None:
        """Tell each listener what it has not heard of the first so many pieces."""
        if "stamp" in self.script:
            self.stamps += [f"{time.time():.6f} "] * (pieces - len(self.stamps))
        parts = len(self.stamps) if "stamp" in self.script else self.chunks
        text = self.answer[: round(len(self.answer) * pieces / parts)]
        for one in self.listeners:
            delta = self._delta(text, one, tokens - one.tokens)
            one.pieces, one.characters, one.tokens = pieces, len(text), tokens
            if one.on_text is None or not (delta.text or delta.tokens):
                continue
            try:
                one.on_text(delta)
            except Exception:
                log.exception("the listener of %s raised, and is dropped", self.request.id)
                one.on_text = None

    def _delta(self, text: str, one: _Listener, tokens: int) -> TextDelta:
        wanted, at = self.request.sampling.logprobs, one.characters
        logprobs = () if wanted is None else self.logprobs(wanted, one.tokens, one.tokens + tokens)
        found = [span.split(":") for span in self.script.get("spans", "").split(",") if span]
        spans = [DraftSpan(max(int(a), at) - at, min(int(b), len(text)) - at, name) for a, b, name in found]
        return TextDelta(text[at:], logprobs, tokens, tuple(span for span in spans if span.start < span.end))

    def ids(self, tokens: int) -> tuple[int, ...]:
        """Of the first so many tokens."""
        last = (OTHER,) if "differs" in self.script and tokens == self.tokens else ()
        return (*range(tokens - len(last)), *last)

    def logprobs(self, alternatives: int, first: int, end: int) -> tuple[TokenLogprob, ...]:
        """No two tokens of a request are the same; the first one is x."""
        found = []
        for number in range(first, end):
            piece = b"x%d" % number if number else b"x"
            top = [(number, piece, LOGPROB)]
            if "gap" in self.script:
                top.append((OTHER, b"y", LOGPROB - float(self.script["gap"])))
            found.append(TokenLogprob(number, piece, LOGPROB, tuple(top[:alternatives])))
        return tuple(found)

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

    def submit(self, request: Request, on_text: OnText | None = None) -> Future[Completion]:
        future: Future[Completion] = Future()
        prompt = request.prompt if request.prompt is not None else (request.messages or ())[-1]["content"]
        words = (prompt or "").split()
        script = dict(word.split("=", 1) for word in words if "=" in word)
        if request.decoding is Decoding.NORMAL:
            script = {name: value for name, value in script.items() if name not in SPECULATIVE}
        text = " ".join(word for word in words if "=" not in word)
        entry = _Entry(
            request.priority, next(self._numbers), request, future, script, text, arrived=time.monotonic()
        )
        if on_text:
            entry.listeners.append(_Listener(on_text))
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
            for entry in self._known(request_id):
                entry.stop = FinishReason.CANCELLED
                self._changed.notify()
                return True
        return False

    def listen(self, request_id: str, on_text: OnText) -> bool:
        with self._changed:
            for entry in self._known(request_id):
                entry.listeners.append(_Listener(on_text))
                self._changed.notify()
                return True
        return False

    def _known(self, request_id: str) -> list[_Entry]:
        return [entry for entry in (*self._running, *self._waiting) if entry.request.id == request_id]

    def progress(self, request_ids: Iterable[str]) -> Progress:
        ids, now = {*request_ids}, time.monotonic()
        with self._changed:
            running = [entry for entry in self._running if entry.request.id in ids]
        return Progress(len(running), sum(int(entry.tokens * entry.share(now)) for entry in running))

    def metrics(self) -> EngineMetrics:
        with self._changed:
            running, waiting = len(self._running), len(self._waiting)
        nothing = Metrics(self._slots).snapshot(running=running, waiting=waiting)
        return replace(nothing, generated_tokens_total=self._generated)

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
                speaking = [e for e in self._running if e.listeners]
                told = [(e, e.due(now)) for e in speaking]
                told = [(e, pieces) for e, pieces in told if any(one.pieces < pieces for one in e.listeners)]
                if not ended and not told:
                    self._changed.wait(self._sleep(now, unix))
            for entry, pieces in told:
                entry.tell(pieces, entry.tokens * pieces // entry.chunks)
            for entry in ended:
                own = FinishReason.LENGTH if "cut" in entry.script or entry.short else FinishReason.STOP
                self._end(entry, entry.stop or own)

    def _sleep(self, now: float, unix: float) -> float | None:
        """Seconds to the next end or deadline; None for nothing to wait for."""
        times = [(e.admitted or now) + e.delay - now for e in self._running]
        everyone = (*self._running, *self._waiting)
        times += [at - now for e in self._running if (at := e.next_piece()) is not None]
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
        own = (FinishReason.STOP, FinishReason.LENGTH)
        share = 1.0 if reason in own else entry.share(now)
        tokens = round(entry.tokens * share)
        self._generated += tokens
        wanted = entry.request.sampling.logprobs
        entry.tell(entry.chunks, tokens)
        entry.future.set_result(
            Completion(
                request_id=entry.request.id,
                text=entry.answer,
                tokens=entry.ids(tokens),
                finish_reason=reason,
                prompt_tokens=len(entry.text.split()),
                cached_tokens=0,
                completion_tokens=tokens,
                timing=Timing(
                    queue_s=admitted - entry.arrived,
                    first_token_s=now - entry.arrived if tokens else None,
                    total_s=now - entry.arrived,
                ),
                logprobs=None if wanted is None else entry.logprobs(wanted, 0, tokens),
                steps=int(entry.script.get("steps", tokens)),
                drafted=entry.drafted,
            )
        )


def _write(line: str) -> None:
    if LOG:
        with Path(LOG).open("a", encoding="utf-8") as log:
            log.write(line + "\n")


def load(config: EngineConfig) -> ScriptedEngine:
    """The factory."""
    if LOAD_ERROR:
        raise ModelLoadError(LOAD_ERROR)
    return ScriptedEngine(config)
