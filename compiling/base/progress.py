"""Who is told how far a compilation is; the command shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Of a known number of steps, one after the other."""

    def plan(self, steps: int) -> None:
        """How many steps are to come."""

    def begin(self, what: str) -> None:
        """The next one."""

    def note(self, share: float) -> None:
        """How much of it is done, 0 to 1."""

    def say(self, line: str) -> None:
        """Something that a person should know."""


class Silence:
    """Tells nobody."""

    def plan(self, steps: int) -> None:
        pass

    def begin(self, what: str) -> None:
        pass

    def note(self, share: float) -> None:
        pass

    def say(self, line: str) -> None:
        pass
