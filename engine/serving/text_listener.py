"""Streams the text of a running request to a callback."""

from __future__ import annotations

import logging

from engine.base.request import DraftSpan, OnText, TextDelta
from engine.core.sequence import SequenceState
from engine.text.detokenizer import TextReader

log = logging.getLogger(__name__)


class Listener:
    """One callback and the text that it has received."""

    def __init__(self, sequence: SequenceState, on_text: OnText) -> None:
        self._sequence = sequence
        self._on_text: OnText | None = on_text
        self._reader = TextReader(sequence.text)
        self._spans = _DraftSpans(sequence)
        self._tokens = 0

    def deliver(self, final: bool = False) -> None:
        """Pass on the new text. A callback that raises is not called again. final: the request has ended."""
        if self._on_text is None:
            return
        text, tokens = self._reader.take(final)
        if not text and not tokens:
            return
        logprobs = tuple(self._sequence.logprobs[self._tokens : self._tokens + tokens])
        self._tokens += tokens
        try:
            self._on_text(TextDelta(text, logprobs, tokens, self._spans.take(len(text))))
        except Exception:
            log.exception("the listener of %s raised, and is dropped", self._sequence.request.id)
            self._on_text = None


class _DraftSpans:
    """Finds the drafted parts of a text that is taken piece by piece."""

    def __init__(self, sequence: SequenceState) -> None:
        self._sequence = sequence
        self._token = 0  # the first whose characters are not all taken
        self._start = 0  # its place in the text, in characters
        self._taken = 0  # characters

    def take(self, characters: int) -> tuple[DraftSpan, ...]:
        """Those in the next so many characters. A token that is taken in two pieces has a span in each."""
        begin, end = self._taken, self._taken + characters
        parts, sources = self._sequence.text.parts, self._sequence.sources
        spans = []
        while self._token < len(parts) and self._start < end:
            until = self._start + len(parts[self._token])
            first, last = max(self._start, begin), min(until, end)
            if (source := sources.get(self._token)) is not None and first < last:
                spans.append(DraftSpan(first - begin, last - begin, source))
            if until > end:
                break
            self._token, self._start = self._token + 1, until
        self._taken = end
        return tuple(spans)
