"""The interface that receives a compilation's progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Progress through a known number of steps."""

    def plan(self, steps: int) -> None:
        """Announce the number of steps."""

    def begin(self, what: str) -> None:
        """Begin the next step."""

    def note(self, share: float) -> None:
        """Report the share of the step that is done, 0 to 1."""

    def say(self, line: str) -> None:
        """Show a line to the user."""


class Silence:
    """Ignores all progress."""

    def plan(self, steps: int) -> None:
        pass

    def begin(self, what: str) -> None:
        pass

    def note(self, share: float) -> None:
        pass

    def say(self, line: str) -> None:
        pass
