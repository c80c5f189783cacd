"""Publishes the text of running jobs to Redis for clients that stream it.

The engine's callback only puts a delta in a list. One thread of the worker takes all that wait and sends them
in one call of append_text, so that a slow Redis makes larger deltas, not a slower engine. When it is away for
long, what waits is dropped, and with it the rest of those streams: a listener gets the whole text from the
record in any case.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.base.errors import StoreUnavailable
from tasks.records.claim import Claim
from tasks.store.jobs import JobStore, TextChunk

log = logging.getLogger(__name__)

MAX_WAITING = 20_000  # deltas: what 16 slots give in some ten seconds; then the listeners wait for the end
RETRY_S = 0.2
MOST_AT_ONCE = 512  # deltas in one script: Redis serves nobody else meanwhile
FLUSH_S = 1.0  # longest time that a job's end waits for its text


class Delta(Protocol):
    """The engine's TextDelta: whole characters, the tokens that gave them, and what of them was drafted."""

    @property
    def text(self) -> str: ...
    @property
    def logprobs(self) -> Sequence[Any]: ...
    @property
    def drafts(self) -> Sequence[tuple[int, int, str]]: ...


@dataclass(eq=False, slots=True)
class Feed:
    """One attempt at a job. The counts are of what is in messages already; tokens of log-probabilities."""

    claim: Claim
    characters: int = 0
    bytes: int = 0
    tokens: int = 0
    broken: bool = False  # a part was dropped, or the claim is not ours any more: nothing further is sent


Item = tuple[Feed, Delta] | threading.Event  # an event is set when what came before it is sent


class TokenStream:
    """start() once, close() once; open() gives what the engine calls for a job."""

    def __init__(self, store: JobStore, show: Callable[[Any], dict[str, Any]]) -> None:
        """show turns a log-probability of the engine into what a result holds."""
        self._store = store
        self._show = show
        self._waiting: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="token-stream", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send what waits, if Redis takes it at once, and end."""
        self._closing.set()
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        """Deltas, and flushes."""
        return self._waiting.qsize()

    def open(self, claim: Claim) -> Callable[[Delta], None]:
        """A callback for the deltas of this attempt, from their start on. It never blocks."""
        feed = Feed(claim)

        def put(delta: Delta) -> None:
            if feed.broken:
                return
            if self.waiting >= MAX_WAITING:
                feed.broken = True
                log.warning("%s is streamed no further: Redis does not take it", claim.job_id)
                return
            self._waiting.put((feed, delta))

        return put

    def flush(self) -> None:
        """Wait until what was put is sent, FLUSH_S at most: a job that has ended takes no text any more."""
        sent = threading.Event()
        self._waiting.put(sent)
        sent.wait(FLUSH_S)

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            gathered, flushes = self._gather(first)
            try:
                self._send(gathered)
            except Exception:
                log.exception("a part of streamed text was lost")
            for sent in flushes:
                sent.set()

    def _gather(self, first: Item) -> tuple[dict[Feed, list[Delta]], list[threading.Event]]:
        """What waits from this one on, by feed, in order."""
        gathered: dict[Feed, list[Delta]] = {}
        flushes = []
        waiting: list[Item | None] = [first]
        while len(waiting) < MOST_AT_ONCE and not self._waiting.empty():  # no other thread takes from it
            waiting.append(self._waiting.get())
        for item in waiting:
            if item is None:
                self._waiting.put(None)  # closing: for the loop to find
            elif isinstance(item, threading.Event):
                flushes.append(item)
            else:
                gathered.setdefault(item[0], []).append(item[1])
        return gathered, flushes

    def _send(self, gathered: dict[Feed, list[Delta]]) -> None:
        """Retry until Redis answers; repeating is safe, since each chunk says where it begins."""
        feeds = [feed for feed in gathered if not feed.broken]
        parts = [self._chunk(feed, gathered[feed]) for feed in feeds]
        while parts:
            try:
                current = self._store.append_text(parts)
            except StoreUnavailable:
                if self._closing.wait(RETRY_S):
                    return
            else:
                for feed, is_current in zip(feeds, current, strict=True):
                    feed.broken = feed.broken or not is_current
                return

    def _chunk(self, feed: Feed, deltas: Sequence[Delta]) -> TextChunk:
        """Deltas of one feed as one message."""
        text = "".join(delta.text for delta in deltas)
        logprobs = [self._show(token) for delta in deltas for token in delta.logprobs]
        claim = feed.claim
        message = {"id": claim.job_id, "attempt": claim.attempts, "at": feed.characters, "text": text}
        if logprobs:
            message |= {"token": feed.tokens, "logprobs": logprobs}
        if drafts := _joined_drafts(deltas):
            message["drafts"] = drafts
        part = TextChunk(
            claim.job_id, claim.fencing_token, feed.bytes, text, json.dumps(message, ensure_ascii=False)
        )
        feed.characters += len(text)
        feed.bytes += len(text.encode())
        feed.tokens += len(logprobs)
        return part


def _joined_drafts(deltas: Sequence[Delta]) -> list[tuple[int, int, str]]:
    """Start, end and source of each drafted part of the joined texts."""
    drafts, at = [], 0
    for delta in deltas:
        drafts += [(at + start, at + end, source) for start, end, source in delta.drafts]
        at += len(delta.text)
    return drafts
