"""Token bytes to text: never splits UTF-8 characters, finds stop strings across tokens."""

from __future__ import annotations

import codecs
from collections import deque
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
        self.parts: list[str] = []  # for each token the characters that it completed
        self._tail = ""
        self.cut: str | None = None  # the text, once a stop string has ended it

    @property
    def text(self) -> str:
        """All whole characters so far, without the stop string and what followed it."""
        return "".join(self.parts) if self.cut is None else self.cut

    def push(self, piece: bytes) -> bool:
        """Add one token's bytes; True when a stop string is complete."""
        new = self._decoder.decode(piece)
        pending = self._decoder.getstate()[0]
        # A surrogate: Python's decoder would wait for the rest of it.
        if pending[:1] == b"\xed" and pending[1:] >= b"\xa0":
            new += self._decoder.decode(b"", final=True)
        self.parts.append(new)
        if not new or not self._stop:
            return False
        window = self._tail + new
        found = [at for at in (window.find(s) for s in self._stop) if at >= 0]
        if found:
            whole = "".join(self.parts)
            self.cut = whole[: len(whole) - len(window) + min(found)]
            return True
        self._tail = window[-self._reach :] if self._reach else ""
        return False

    @property
    def held(self) -> int:
        """Characters at the end that may turn out to be the beginning of a stop string."""
        if self.cut is not None:
            return 0
        longest = len(self._tail)
        return next((n for n in range(longest, 0, -1) if self._may_begin(self._tail[-n:])), 0)

    def _may_begin(self, ending: str) -> bool:
        return any(len(s) > len(ending) and s.startswith(ending) for s in self._stop)


class TextReader:
    """One reader's position in a TextStream: returns text once no stop string can remove it."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._read = 0  # tokens taken from the stream
        self._waiting = ""  # text of these that is not returned yet
        self._given = 0  # characters returned
        self._ends: deque[int] = deque()  # for each token not returned yet, its end in the text

    def take(self, final: bool = False) -> tuple[str, int]:
        """(new text, number of tokens that it completes) since the last call. final: the stream has ended."""
        stream = self._stream
        if self._read == len(stream.parts) and not final:
            return "", 0
        end = self._given + len(self._waiting)
        for part in stream.parts[self._read :]:
            end += len(part)
            self._ends.append(end if part else end + 1)  # completes no character: returned with the next one
        text = self._waiting + "".join(stream.parts[self._read :])
        self._read = len(stream.parts)
        if stream.cut is not None:
            text, self._waiting = text[: len(stream.cut) - self._given], ""
        else:
            certain = len(text) if final else len(text) - stream.held
            text, self._waiting = text[:certain], text[certain:]
        self._given += len(text)
        tokens = 0
        while self._ends and (final or self._ends[0] <= self._given):
            self._ends.popleft()
            tokens += 1
        return text, tokens
