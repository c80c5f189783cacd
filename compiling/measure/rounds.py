"""Rounds of speed measurements. A round is complete if one process measured all files in it.

The speed of a machine varies over days, so files must only be compared within a round.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from compiling.base.state import Record
from compiling.measure.speed import Speed


class Rounds:
    """The rounds stored in a record. key: what the speed of a type depends on."""

    def __init__(self, record: Record, key: Callable[[str], list[object]], count: int) -> None:
        self._record = record
        self._key = key
        self._count = count
        self._now = secrets.token_hex(8)  # marks what this process measures

    def missing(self, types: Sequence[str]) -> list[int]:
        """Numbers of the rounds that are not complete for all these types."""
        return [number for number in range(self._count) if not self._is_whole(types, number)]

    def put(self, type: str, number: int, speed: dict[str, Any]) -> None:
        """Store a measurement. speed: the result of Speed.json()."""
        self._record.put("speed", {"round": self._now, "speed": speed}, *self._key(type), number)

    def speeds(self, type: str) -> tuple[Speed, ...]:
        """The speed in each round, all of which must be complete."""
        return tuple(Speed.of(self._known(type, number)["speed"]) for number in range(self._count))

    def _known(self, type: str, number: int) -> Any:
        return self._record.get("speed", *self._key(type), number)

    def _is_whole(self, types: Sequence[str], number: int) -> bool:
        known = [self._known(type, number) for type in types]
        return all(isinstance(one, dict) and "round" in one for one in known) and (
            len({one["round"] for one in known}) == 1
        )
