"""The progress of a run: a live bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from rich import progress as bars
from rich.console import Console

from cli.views.time_left import Progress, TimeLeft

SPEED_S = 10.0  # over which the speed is averaged: fresh, and steady to the eye
PLAIN_EVERY_S = 5.0
UPDATE_S = 0.25


class Speed:
    """Tokens per second over the last SPEED_S."""

    def __init__(self, now: float) -> None:
        self._points = deque([(now, 0)])

    def note(self, now: float, tokens: int) -> None:
        self._points.append((now, tokens))
        while self._points[1][0] < now - SPEED_S:
            self._points.popleft()

    def per_second(self) -> float:
        (first_at, first), (last_at, last) = self._points[0], self._points[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


class Display:
    """A context manager that shows progress. update() may be called often; it limits its output."""

    def __init__(self, console: Console, total: int, before: Progress, *, enabled: bool) -> None:
        self._total = total
        self._before = before
        self._tokens = 0
        self._enabled = enabled
        self._console = console
        now = time.monotonic()
        self._speed = Speed(now)
        self._left = TimeLeft(now, before)
        self._next_plain = now + PLAIN_EVERY_S
        self._bar: bars.Progress | None = None
        if enabled and console.is_terminal:
            text = bars.TextColumn("{task.completed}/{task.total}  {task.description}")
            self._bar = bars.Progress(bars.BarColumn(), text, console=console, refresh_per_second=4)
            self._task = self._bar.add_task("starting", total=total, completed=before.done)

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, progress: Progress, last_error: str | None, total: int | None = None) -> None:
        """last_error: why answers are missing. total: where it has grown."""
        now, done = time.monotonic(), progress.done
        self._total = self._total if total is None else total
        # Requests whose worker is lost begin anew: what was counted of them is not taken back.
        self._tokens = max(self._tokens, progress.tokens + progress.running_tokens - self._before.tokens)
        self._speed.note(now, self._tokens)
        self._left.note(now, progress, self._total)
        text = self._text(now, progress, last_error)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self._total, description=text)
        elif self._enabled and now >= self._next_plain:
            self._next_plain = now + PLAIN_EVERY_S
            self._console.print(
                f"{done}/{self._total}  {text}", highlight=False, markup=False, soft_wrap=True
            )

    def _text(self, now: float, progress: Progress, last_error: str | None) -> str:
        parts = [f"{progress.running} running"] if progress.running else []
        if self._tokens:
            tokens = f"{self._tokens:,} token{'s' * (self._tokens != 1)}"
            parts.append(f"{tokens}, {self._speed.per_second():.1f}/s")
        elif not parts:
            parts.append("starting")
        if (left := self._left.seconds(now)) is not None:
            parts.append(f"about {duration(left)} left")
        if progress.failed:
            parts.append(f"{progress.failed} failed")
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
