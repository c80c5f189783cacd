"""Options and result of a compilation."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compiling.base.formats import Source
from compiling.measure.quality import Quality
from compiling.measure.speed import Speed
from compiling.result.recommendation import Load, Recommendation

ROUNDS = 3  # speed rounds: single ones differ by a tenth on a shared machine
MAX_KL = 0.02  # nats per token; see docs/how-to/compile.md


def bulk(speed: Speed) -> float:
    return speed.bulk_per_s


def alone(speed: Speed) -> float:
    return speed.alone_per_s


COUNTS = {Load.BULK: bulk, Load.ONE: alone}  # tokens per second under each load


@dataclass(frozen=True, slots=True)
class Options:
    """source: a GGUF, or anything that compiling.source can convert to one. types: None is DEFAULT_TYPES.
    imatrix, text: text files. keep: keep the files of all types, not only of the recommended one. threads: 0
    is every core.
    """

    source: str
    folder: Path
    types: tuple[str, ...] | None = None
    imatrix: Path | None = None
    text: Path | None = None
    max_kl: float = MAX_KL
    load: Load = Load.BULK
    threads: int = 0
    rounds: int = ROUNDS
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One measured file. speeds: one per round."""

    type: str
    path: str
    bytes: int
    quality: Quality
    speeds: tuple[Speed, ...]

    @property
    def speed(self) -> Speed:
        """The median of each value over the rounds, and the maximum of the memory."""
        each = self.speeds
        rows = {n: statistics.median(one.row_s[n] for one in each) for n in each[0].row_s}
        return Speed(
            load_s=statistics.median(one.load_s for one in each),
            row_s=rows,
            prefill_per_s=statistics.median(one.prefill_per_s for one in each),
            bulk_per_s=statistics.median(one.bulk_per_s for one in each),
            peak_bytes=max(one.peak_bytes for one in each),
        )

    def ratio(self, base: Row, value: Callable[[Speed], float]) -> float:
        """Median over the rounds of the ratio to the base: in one round both are measured within minutes."""
        pairs = zip(self.speeds, base.speeds, strict=True)
        return statistics.median(value(own) / value(other) for own, other in pairs)


@dataclass(frozen=True, slots=True)
class Compiled:
    """rows: the unchanged source first, then the types. exact: quality of the source's exact values."""

    source: Source
    rows: tuple[Row, ...]
    exact: Quality
    recommendation: Recommendation
    options: Options
    machine: str
    build: str
    left_out: tuple[str, ...]

    @property
    def recommended(self) -> Row:
        return next(row for row in self.rows if row.type == self.recommendation.type)
