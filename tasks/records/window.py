"""Windows: lines of a batch that travel, run and are lost together; what workers and the store say of them.

A line waits, is open (it may be in an engine), or has ended. An index of a line counts from 0 in its window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tasks.records.job import Status


@dataclass(frozen=True, slots=True)
class NewWindow:
    """Lines to send together, as they are packed in a chunk, all for one model; "" for none."""

    model: str
    lines: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class WindowClaim:
    """A window claimed by this worker: none of its lines is open yet. Times are Unix seconds by the clock of
    Redis.

    attempts: at each of its lines, with this one. isolated: the last attempt, at one line as a rule: it is
    opened when nothing else is in the engine.
    """

    window_id: str
    fencing_token: int
    attempts: int
    isolated: bool
    batch_id: str
    owner: str
    model: str | None
    deadline: float
    created_at: float
    queued_at: float  # when its message was sent
    claimed_at: float
    lines: tuple[str, ...]  # packed, without their ends


@dataclass(frozen=True, slots=True)
class LiveWindow:
    """A window that has not ended, as people see it. lines: as its message showed them, such as
    "batch_0f lines 2,049 to 2,112"; count: how many, ended of which have an end; attempt: 1 for the first.
    """

    window_id: str
    status: Status
    lines: str
    count: int
    ended: int
    attempt: int
    model: str | None
    worker: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.window_id,
            "object": "batch.window",
            "status": self.status.value,
            "lines": self.lines,
            "line_counts": {"total": self.count, "ended": self.ended},
            "attempt": self.attempt,
            "model": self.model,
            "worker": self.worker,
        }


@dataclass(frozen=True, slots=True)
class LineEnd:
    """The end of an open line. entry: what a segment holds of it; code: of its failure, None for success.

    max_tokens: of its request, which were set aside. cut: max_tokens ended the answer.
    """

    index: int
    status: Status
    entry: str
    max_tokens: int
    code: str | None = None
    cut: bool = False
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """How many lines an engine runs, and the tokens of answers that they have got so far."""

    lines: int = 0
    output_tokens: int = 0

    def to_json(self) -> dict[str, int]:
        return {"lines": self.lines, "output_tokens": self.output_tokens}


@dataclass(frozen=True, slots=True)
class Group:
    """Ends of lines of one window to be written together, and lines to be opened.

    number: 1 for the first under a claim, and one more for each that follows: once it was answered, or again
    as it was. open_to: so many of the window's first lines may be in the engine afterwards. running: of the
    lines that have not ended.
    """

    window_id: str
    fencing_token: int
    number: int
    open_to: int
    ends: Sequence[LineEnd] = ()
    running: Running = Running()


class Standing(StrEnum):
    """Whose a window is."""

    OK = "ok"
    LOST = "lost"  # the claim is not the sender's any more: nothing was written
    GONE = "gone"  # as LOST, or all lines have ended and this group is written already


@dataclass(frozen=True, slots=True)
class Advanced:
    """What became of a group. opened: first lines that may be in the engine; of count; left: not ended yet.

    count shrinks where lines that waited were given to others, or ended with their batch. With left 0 the
    window is over.
    """

    standing: Standing
    opened: int = 0
    count: int = 0
    left: int = 0
