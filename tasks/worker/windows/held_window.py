"""A window that this worker holds: which of its lines wait, which run, and the ends that are not written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

from tasks.records.window import Advanced, Group, LineEnd, Running, WindowClaim
from tasks.worker.windows.lines import OpenLine

# Ends of lines are written together, so many of them, so many bytes, or what there is after so long.
GROUP_LINES = 32
GROUP_BYTES = 1024 * 1024
GROUP_S = 0.25
TELL_S = 1.0  # who watches a batch sees tokens so often where no line ends


class HeldWindow:
    """One thread changes it, that of the runner; heartbeats set disowned and cancelled, and call stop().

    disowned: the claim is lost, so nothing more is written. over: done with the line that Flower shows, or
    with an exception once the window is not this worker's any more.
    """

    def __init__(
        self, claim: WindowClaim, stop: Callable[[HeldWindow], None], hand_back: Callable[[HeldWindow], bool]
    ) -> None:
        """stop: ask the runner to look at what the heartbeat has set. hand_back: queue it again."""
        self.claim = claim
        self.claimed = time.monotonic()
        self.over: Future[str] = Future()
        self.disowned = self.cancelled = False
        self.running: dict[str, OpenLine] = {}  # by the ids of their requests
        self.opened = 0  # first lines that may be in the engine
        self.count = len(claim.lines)
        self.statuses: Counter[str] = Counter()
        self.output_tokens = 0
        self._stop, self._hand_back = stop, hand_back
        self._number = 0  # of the last group
        self._ends: list[LineEnd] = []
        self._bytes = 0
        self._oldest = 0.0  # of these ends, on the monotonic clock
        self._told = self.claimed  # when the last group was made

    @property
    def id(self) -> str:
        return self.claim.window_id

    @property
    def fencing_token(self) -> int:
        return self.claim.fencing_token

    @property
    def given_up(self) -> bool:
        return self.disowned or self.cancelled

    def stop(self) -> None:
        self._stop(self)

    def hand_back(self) -> bool:
        return self._hand_back(self)

    @property
    def waiting(self) -> int:
        """Lines that are not open."""
        return self.count - self.opened

    @property
    def unended(self) -> int:
        """Lines that wait or run."""
        return self.waiting + len(self.running)

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.claimed

    @property
    def left_s(self) -> float:
        """Until its deadline, by the clock of Redis."""
        return max(0.0, self.claim.deadline - self.claim.claimed_at - self.waited_s)

    def may_open(self, slots: int) -> int:
        """How many further lines.

        A window that was lost with its worker has few open at a time: they are the suspects if it is lost
        again.
        """
        if self.given_up or not self.left_s:
            return 0
        return (
            self.waiting if self.claim.attempts == 1 else min(self.waiting, max(0, slots - len(self.running)))
        )

    def ended(self, end: LineEnd) -> None:
        if not self._ends:
            self._oldest = time.monotonic()
        self._ends.append(end)
        self._bytes += len(end.entry)
        self.statuses[end.status] += 1
        self.output_tokens += end.output_tokens

    @property
    def has_ends(self) -> bool:
        """That are not written."""
        return bool(self._ends)

    def is_due(self) -> bool:
        """Whether the ends of lines or what runs are to be written, or the lines that wait must end."""
        if self.waiting and (self.cancelled or not self.left_s):
            return True
        if not self._ends:
            return bool(self.running) and time.monotonic() - self._told >= TELL_S
        full = len(self._ends) >= GROUP_LINES or self._bytes >= GROUP_BYTES
        return full or self.unended == 0 or time.monotonic() - self._oldest >= GROUP_S

    def next_group(self, further: int, running: Running) -> Group:
        """All ends that are not written, and so many further lines to be opened. running: of the others."""
        self._number += 1
        self._told = time.monotonic()
        ends, self._ends, self._bytes = self._ends, [], 0
        return Group(self.id, self.fencing_token, self._number, self.opened + further, ends, running)

    def answered(self, answer: Advanced) -> range:
        """Note what is open by now; returns the indexes of the lines that were not before."""
        before, self.opened, self.count = self.opened, answer.opened, answer.count
        return range(before, self.opened)

    def summary(self) -> str:
        """As in "64 lines, 61 succeeded, 3 failed, 1,234 tokens, 210.5 tok/s"."""
        per_s = self.output_tokens / max(self.waited_s, 1e-3)
        lines = self.statuses.total()
        parts = [
            f"{lines:,} line{'s' * (lines != 1)}",
            *(f"{n:,} {name}" for name, n in self.statuses.items()),
        ]
        return ", ".join([*parts, f"{self.output_tokens:,} tokens", f"{per_s:.1f} tok/s"])
