"""Streams the text of a running request to a callback."""

from __future__ import annotations

import logging

from engine.base.request import OnText, TextDelta
from engine.core.sequence import SequenceState
from engine.text.detokenizer import TextReader

log = logging.getLogger(__name__)


class Listener:
    """One callback and the text that it has received."""

    def __init__(self, sequence: SequenceState, on_text: OnText) -> None:
        self._sequence = sequence
        self._on_text: OnText | None = on_text
        self._reader = TextReader(sequence.text)
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
            self._on_text(TextDelta(text, logprobs, tokens))
        except Exception:
            log.exception("the listener of %s raised, and is dropped", self._sequence.request.id)
            self._on_text = None
