"""The progress of a run: a live bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

WINDOW_S = 30.0  # averaging window: results come in bursts, and early ones are slow
PLAIN_EVERY_S = 5.0
UPDATE_S = 0.25


class Speed:
    """Tokens and requests per second over the last WINDOW_S."""

    def __init__(self, now: float) -> None:
        self._points = deque([(now, 0, 0)])

    def note(self, now: float, tokens: int, ended: int) -> None:
        self._points.append((now, tokens, ended))
        while self._points[1][0] < now - WINDOW_S:
            self._points.popleft()

    def per_second(self) -> tuple[float, float]:
        (first_at, *first), (last_at, *last) = self._points[0], self._points[-1]
        passed = last_at - first_at
        if passed <= 0:
            return 0.0, 0.0
        return (last[0] - first[0]) / passed, (last[1] - first[1]) / passed


class Display:
    """A context manager that shows progress. update() may be called often; it limits its output."""

    def __init__(self, console: Console, total: int, done: int, *, enabled: bool) -> None:
        self._total = total
        self._done_before = done
        self._enabled = enabled
        self._console = console
        now = time.monotonic()
        self._speed = Speed(now)
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
        self._speed.note(now, tokens, done - self._done_before)
        text = self._text(done, failed, last_error)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self._total, description=text)
        elif self._enabled and now >= self._next_plain:
            self._next_plain = now + PLAIN_EVERY_S
            self._console.print(
                f"{done}/{self._total}  {text}", highlight=False, markup=False, soft_wrap=True
            )

    def _text(self, done: int, failed: int, last_error: str | None) -> str:
        tokens_per_s, ends_per_s = self._speed.per_second()
        parts = [f"{tokens_per_s:.1f} tokens/s"]
        if ends_per_s > 0:
            parts.append(f"{duration((self._total - done) / ends_per_s)} left")
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
