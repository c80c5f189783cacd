"""The progress of a run: a live bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

WINDOW_S = 30.0  # averaging window: results come in bursts, and early ones are slow
# What an estimate of the time left needs, and as many first answers, which took longer, do not count.
LEAST_ENDS = 5
LEAST_S = 5.0
PLAIN_EVERY_S = 5.0
UPDATE_S = 0.25


class Speed:
    """Tokens per second over the last WINDOW_S."""

    def __init__(self, now: float) -> None:
        self._points = deque([(now, 0)])

    def note(self, now: float, tokens: int) -> None:
        self._points.append((now, tokens))
        while self._points[1][0] < now - WINDOW_S:
            self._points.popleft()

    def per_second(self) -> float:
        (first_at, first), (last_at, last) = self._points[0], self._points[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


class TimeLeft:
    """Estimates the time left from the requests that ended in a window that begins behind the first of them.

    The window is the last WINDOW_S, and as much more as LEAST_ENDS requests take.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()  # when the number of ended requests changed

    def note(self, now: float, ended: int) -> None:
        """ended: requests that have ended since the beginning."""
        if ended >= LEAST_ENDS and (not self._points or ended > self._points[-1][1]):
            self._points.append((now, ended))
        while len(self._points) > 1:
            at, before = self._points[1]
            if at >= now - WINDOW_S or ended - before < LEAST_ENDS:
                break
            self._points.popleft()

    def seconds(self, now: float, remaining: int) -> float | None:
        """None as long as too little is known."""
        if not self._points:
            return None
        (began, before), (last_at, last) = self._points[0], self._points[-1]
        if last - before < LEAST_ENDS or now - began < LEAST_S:
            return None
        waited = now - last_at
        # Requests end in bursts: the rate is that up to the last one, unless the next is overdue.
        usual = min(waited, max(after - at for (at, _), (after, _) in pairwise(self._points)))
        return max(0.0, remaining * (now - usual - began) / (last - before) - usual)


class Display:
    """A context manager that shows progress. update() may be called often; it limits its output."""

    def __init__(self, console: Console, total: int, done: int, *, enabled: bool) -> None:
        self._total = total
        self._done_before = done
        self._enabled = enabled
        self._console = console
        now = time.monotonic()
        self._speed = Speed(now)
        self._left = TimeLeft()
        self._next_plain = now + PLAIN_EVERY_S
        self._bar: Progress | None = None
        if enabled and console.is_terminal:
            columns = (BarColumn(), TextColumn("{task.completed}/{task.total}  {task.description}"))
            self._bar = Progress(*columns, console=console, refresh_per_second=4)
            self._task = self._bar.add_task("starting", total=total, completed=done)

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(
        self, done: int, failed: int, tokens: int, last_error: str | None, total: int | None = None
    ) -> None:
        """tokens: generated in this session. trouble: why answers are missing. total: where it has grown."""
        now = time.monotonic()
        self._total = self._total if total is None else total
        self._speed.note(now, tokens)
        self._left.note(now, done - self._done_before)
        text = self._text(now, done, failed, last_error)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self._total, description=text)
        elif self._enabled and now >= self._next_plain:
            self._next_plain = now + PLAIN_EVERY_S
            self._console.print(
                f"{done}/{self._total}  {text}", highlight=False, markup=False, soft_wrap=True
            )

    def _text(self, now: float, done: int, failed: int, last_error: str | None) -> str:
        parts = [f"{self._speed.per_second():.1f} tokens/s"]
        if (left := self._left.seconds(now, self._total - done)) is not None:
            parts.append(f"{duration(left)} left")
        if failed:
            parts.append(f"{failed} failed")
        if last_error is not None:
            parts.append(f"waiting for the gateway ({last_error})")
        return "  ".join(parts)


@contextlib.asynccontextmanager
async def updated(update: Callable[[], None]) -> AsyncIterator[None]:
    """Call update periodically during the block, and at its end."""

    async def keep_on() -> None:
        while True:
            update()
            await asyncio.sleep(UPDATE_S)

    task = asyncio.create_task(keep_on())
    try:
        yield
    finally:
        task.cancel()
        update()


def duration(seconds: float) -> str:
    """As in "7.3 s", "1 min 12 s" and "3 h 05 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02} min"
