"""Recommends a format: the fastest whose outputs are close to those of the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Load(StrEnum):
    """The load for which a format is recommended."""

    ONE = "one"  # a single stream: T(1)
    BULK = "bulk"  # many requests at once


@dataclass(frozen=True, slots=True)
class Candidate:
    """kl: mean divergence from the source in nats per token. per_s: tokens per second under the chosen load.

    ratio: of per_s to that of the unchanged source. bytes: of the file.
    """

    type: str
    kl: float
    per_s: float
    ratio: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """fits: whether its divergence is at most the bound; otherwise it is the format with the lowest."""

    type: str
    fits: bool
    reason: str


def recommend(candidates: Sequence[Candidate], load: Load, max_kl: float) -> Recommendation:
    """Recommend the fastest format whose divergence is at most max_kl, or else the one with the lowest.

    Speed is compared by the ratio to the source, which comes from measurements in the same round. Ties go to
    the smaller file, or to the faster format.
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
