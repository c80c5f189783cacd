"""Which of the measured formats to run: the fastest that answers nearly as the source does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Load(StrEnum):
    """The load for which a format is recommended."""

    ONE = "one"  # a lone stream: T(1)
    BULK = "bulk"  # many requests at once


@dataclass(frozen=True, slots=True)
class Candidate:
    """kl: mean divergence from the source in nats a token. per_s: tokens a second under the load that counts.

    ratio: of that to the source as it is. bytes: of the file.
    """

    type: str
    kl: float
    per_s: float
    ratio: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """fits: whether its divergence is within the bound; else it is the closest that there is."""

    type: str
    fits: bool
    reason: str


def recommend(candidates: Sequence[Candidate], load: Load, max_kl: float) -> Recommendation:
    """Recommend a format whose divergence is at most max_kl, or else the closest one.

    The fastest is the one of the highest ratio, which was taken between measurements that lie close together.
    Of equally fast ones the smaller file, of equally close ones the faster.
    """
    within = [one for one in candidates if one.kl <= max_kl]
    what = "in bulk" if load is Load.BULK else "for a lone stream"
    if within:
        best = max(within, key=lambda one: (one.ratio, -one.bytes))
        why = (
            f"the fastest {what} ({best.per_s:.1f} tokens/s, {best.ratio:.2f} times the source) of the "
            f"{len(within)} whose divergence is at most {max_kl:g} nats a token; its own is {best.kl:.2g}"
        )
        return Recommendation(best.type, True, why)
    best = min(candidates, key=lambda one: (one.kl, -one.ratio))
    why = (
        f"none has a divergence of at most {max_kl:g} nats a token; this one comes closest with "
        f"{best.kl:.2g} ({best.per_s:.1f} tokens/s {what})"
    )
    return Recommendation(best.type, False, why)
