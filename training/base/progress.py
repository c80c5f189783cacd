"""Progress of a long run: a progress bar on a terminal, otherwise a plain line every PLAIN_EVERY_S."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY_S = 20.0


class Display:
    """A context manager. update() may be called often: it limits its own output."""

    def __init__(self, console: Console, unit: str, total: int, done: int = 0) -> None:
        self._console = console
        self._unit = unit
        self._total = total
        self._first = done
        self._started = time.monotonic()
        self._next_plain = self._started + PLAIN_EVERY_S
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=console, refresh_per_second=4)
            self._task = self._bar.add_task(unit, total=total, completed=done)

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, remark: str = "") -> None:
        now = time.monotonic()
        if self._bar is None and now < self._next_plain:
            return
        per_s = (done - self._first) / max(now - self._started, 1e-9)
        text = f"{self._unit}, {per_s:.0f} a second"
        if remark:
            text += f", {remark}"
        if self._bar is not None:
            self._bar.update(self._task, completed=min(done, self._total), description=text)
            return
        self._next_plain = now + PLAIN_EVERY_S
        left = f", {max(self._total - done, 0) / per_s / 60:.0f} min left" if per_s > 0 else ""
        self.say(f"{done}/{self._total} {text}{left}")

    def say(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        say(self._console, line)


def say(console: Console, line: str) -> None:
    """Print a line without markup or wrapping."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)
