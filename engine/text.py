"""From token bytes to text: UTF-8 never cut, stop strings found across token borders."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Text of one completion as its tokens arrive.

    Bytes of an unfinished character are held back; bytes that can never become one turn into
    U+FFFD. Once a stop string appears the text ends before it.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._reach = max((len(s) for s in self._stop), default=1) - 1  # old characters a stop may begin in
        self._parts: list[str] = []
        self._tail = ""
        self._cut: str | None = None

    @property
    def text(self) -> str:
        """All whole characters so far, without the stop string and what followed it."""
        return "".join(self._parts) if self._cut is None else self._cut

    def push(self, piece: bytes) -> bool:
        """Add one token's bytes; True when a stop string is complete."""
        new = self._decoder.decode(piece)
        if not new:
            return False
        self._parts.append(new)
        if not self._stop:
            return False
        window = self._tail + new
        found = [at for at in (window.find(s) for s in self._stop) if at >= 0]
        if found:
            whole = "".join(self._parts)
            self._cut = whole[: len(whole) - len(window) + min(found)]
            return True
        self._tail = window[-self._reach :] if self._reach else ""
        return False
