"""What a case is: a name, what it needs of its stack, and the function that puts in the faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.chaos.run import Run
from tests.chaos.stack import NOTHING, Needs

Act = Callable[[Run], None]


@dataclass(frozen=True)
class Case:
    """profile: settings that differ from the defaults. limit_s: the longest recovery that is good
    enough, at the times of `make chaos`.
    """

    name: str
    title: str
    act: Act
    profile: Mapping[str, object] = field(default_factory=dict)
    needs: Needs = NOTHING
    limit_s: float | None = None


CASES: dict[str, Case] = {}


def case(
    name: str, title: str, needs: Needs = NOTHING, limit_s: float | None = None, **profile: object
) -> Callable[[Act], Act]:
    """Put the function into CASES."""

    def put(act: Act) -> Act:
        CASES[name] = Case(name, title, act, profile, needs, limit_s)
        return act

    return put
