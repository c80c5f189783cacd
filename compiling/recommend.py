"""Which of the measured formats to run: the fastest that answers nearly as the source does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Load(StrEnum):
    """What a machine is to be fast at."""

    ONE = "one"  # a lone stream: T(1)
    BULK = "bulk"  # many requests at once


@dataclass(frozen=True, slots=True)
class Candidate:
    """kl: mean divergence from the source in nats a token. bytes: of the file."""

    type: str
    kl: float
    bulk_per_s: float
    alone_per_s: float
    bytes: int

    def per_s(self, load: Load) -> float:
        """Tokens a second."""
        return self.bulk_per_s if load is Load.BULK else self.alone_per_s


@dataclass(frozen=True, slots=True)
class Recommendation:
    """fits: whether its divergence is within the bound; else it is the closest that there is."""

    type: str
    fits: bool
    reason: str


def recommend(candidates: Sequence[Candidate], load: Load, max_kl: float) -> Recommendation:
    """The bound itself is within it. Of equally fast ones the smaller file, of equally close ones the faster.

    The first candidate is the one that others are compared with.
    """
    base = candidates[0]
    within = [one for one in candidates if one.kl <= max_kl]
    what = "in bulk" if load is Load.BULK else "for a lone stream"
    if within:
        best = max(within, key=lambda one: (one.per_s(load), -one.bytes))
        gain = "" if best is base else f", {best.per_s(load) / base.per_s(load):.2f} times {base.type}"
        why = (
            f"the fastest {what} ({best.per_s(load):.1f} tokens/s{gain}) of the {len(within)} whose "
            f"divergence is at most {max_kl:g} nats a token; its own is {best.kl:.2g}"
        )
        return Recommendation(best.type, True, why)
    best = min(candidates, key=lambda one: (one.kl, -one.per_s(load)))
    why = (
        f"none has a divergence of at most {max_kl:g} nats a token; this one comes closest with "
        f"{best.kl:.2g} ({best.per_s(load):.1f} tokens/s {what})"
    )
    return Recommendation(best.type, False, why)
