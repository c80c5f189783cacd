"""The chart of step time by cells: `python -m docs.pictures.measured.cells` draws it from cells.json.

The benchmark `cells` writes that file with `--json docs/pictures/measured`. "How the engine runs" gets
the chart, and Measurements the table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from docs.pictures.measured.blocks import put_between
from docs.pictures.measured.figures import Measured
from docs.pictures.svg import card, text

FIGURES = Path(__file__).with_suffix(".json")
PICTURE = Path(__file__).with_suffix(".svg")
DOCS = Path(__file__).parents[2]
CHART_PAGE, TABLE_PAGE = DOCS / "explanation" / "engine.md", DOCS / "reference" / "measurements.md"
BLOCK = "cells"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 500, 72, 728, 96, 412
KINDS = ("io", "gateway", "files", "redis", "model")  # colours, by number of requests
TICKS = [mantissa * 10**power for power in range(5) for mantissa in (1, 2, 5)]  # ms
TITLE = "Milliseconds a step, by cells of each request"
OURS, THEIRS = "medusaq, a whole step", "llama-batched-bench, the decode call alone"

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Point:
    """Milliseconds of a step in each run, when so many requests have so many cells each."""

    requests: int
    cells: int
    ours_ms: list[float]
    llama_cpp_ms: list[float]

    @property
    def ratios(self) -> list[float]:
        """Ours to llama.cpp's, of each pair of runs."""
        return [ours / theirs for ours, theirs in zip(self.ours_ms, self.llama_cpp_ms, strict=True)]

    def line(self) -> str:
        ratios = self.ratios
        return (
            f"{self.requests:>2} requests, {self.cells:>4} cells: ours {median(self.ours_ms):6.1f} ms, "
            f"llama.cpp {median(self.llama_cpp_ms):6.1f} ms, "
            f"ratio {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


@dataclass(frozen=True, slots=True)
class Figures(Measured):
    """One run of the benchmark. steps: timed in each run. kv_cells: the engine's setting."""

    steps: int
    kv_cells: int
    points: list[Point]

    @classmethod
    def read(cls, path: Path) -> Figures:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(**(found | {"points": [Point(**each) for each in found["points"]]}))

    def curve(self, requests: int) -> list[Point]:
        return sorted((p for p in self.points if p.requests == requests), key=lambda point: point.cells)

    @property
    def requests(self) -> list[int]:
        return sorted({point.requests for point in self.points})

    @property
    def cells(self) -> list[int]:
        return sorted({point.cells for point in self.points})


def draw(figures: Figures) -> str:
    """Medians over cells, both axes logarithmic: a line for each number of requests, llama.cpp's dashed."""
    medians = [
        value for point in figures.points for value in (median(point.ours_ms), median(point.llama_cpp_ms))
    ]
    x = _scale(min(figures.cells), max(figures.cells), LEFT + 24, RIGHT - 16)
    y = _scale(min(medians), max(medians), BOTTOM - 16, TOP + 12)
    body = [text(24, 38, TITLE, 18, bold=True), *_legend(), *_axes(figures, x, y)]
    for n, requests in enumerate(figures.requests):
        curve, kind = figures.curve(requests), KINDS[n % len(KINDS)]
        ours = [(x(point.cells), y(median(point.ours_ms))) for point in curve]
        theirs = [(x(point.cells), y(median(point.llama_cpp_ms))) for point in curve]
        body += _ours(kind, ours) + _theirs(theirs)
        plural = "" if requests == 1 else "s"
        body += [text(RIGHT + 12, ours[-1][1] + 4, f"{requests} request{plural}", 13, bold=True)]
    body += [text(24, HEIGHT - 20, figures.origin(), 12, "muted")]
    told = "; ".join(point.line() for n in figures.requests for point in figures.curve(n))
    return card(WIDTH, HEIGHT, f"{TITLE}: {told}", body)


def _scale(least: float, most: float, first: float, last: float) -> Scale:
    """A logarithmic scale from values to pixels."""
    width = math.log(most / least) or 1.0
    return lambda value: first + (last - first) * math.log(value / least) / width


def _axes(figures: Figures, x: Scale, y: Scale) -> list[str]:
    body = []
    for cells in figures.cells:
        body += [f'<path class="line" stroke-opacity="0.25" d="M{x(cells):.1f} {TOP}V{BOTTOM}"/>']
        body += [text(round(x(cells), 1), BOTTOM + 20, f"{cells:,}", 12, "muted", "middle")]
    for tick in (tick for tick in TICKS if TOP <= y(tick) <= BOTTOM):
        body += [f'<path class="line" stroke-opacity="0.25" d="M{LEFT} {y(tick):.1f}H{RIGHT}"/>']
        body += [text(LEFT - 10, round(y(tick), 1) + 4, f"{tick:,} ms", 12, "muted", "end")]
    return [*body, text((LEFT + RIGHT) / 2, BOTTOM + 42, "cells of each request", 12, "muted", "middle")]


def _legend() -> list[str]:
    ours, theirs = ((24, 62), (64, 62)), ((280, 62), (320, 62))
    return [
        *_ours(KINDS[0], ours),
        text(76, 66, OURS, 12.5),
        *_theirs(theirs),
        text(332, 66, THEIRS, 12.5),
    ]


def _ours(kind: str, at: Sequence[tuple[float, float]]) -> list[str]:
    dots = [f'<circle class="{kind}-solid" cx="{x:.1f}" cy="{y:.1f}" r="5"/>' for x, y in at]
    return [f'<polyline class="{kind}-line" points="{_points(at)}"/>', *dots]


def _theirs(at: Sequence[tuple[float, float]]) -> list[str]:
    rings = [f'<circle class="line" cx="{x:.1f}" cy="{y:.1f}" r="5"/>' for x, y in at]
    return [f'<polyline class="line" stroke-dasharray="5 5" points="{_points(at)}"/>', *rings]


def _points(at: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in at)


def block(figures: Figures) -> str:
    """What "How the engine runs" says."""
    picture = f"../pictures/measured/{PICTURE.name}"
    return (
        "In lanes, the cells of other requests cost a row nothing. A step beside llama.cpp's own benchmark,\n"
        "which decodes as many tokens in one call and samples nothing\n"
        "([figures](../reference/measurements.md#cells-of-each-request)):\n\n"
        f"![{TITLE}: medusaq and llama-batched-bench]({picture})\n\n{figures.origin()}.\n"
    )


def table(figures: Figures) -> str:
    """What Measurements says: a row for each number of cells, a column for each number of requests."""
    heads = [f"{requests} request{'' if requests == 1 else 's'}" for requests in figures.requests]
    found = {(point.requests, point.cells): point for point in figures.points}
    rows = [
        f"| {cells:,} | "
        + " | ".join(_entry(found.get((requests, cells))) for requests in figures.requests)
        + " |"
        for cells in figures.cells
    ]
    runs = len(figures.points[0].ours_ms)
    return "\n".join(
        [
            f"| cells each | {' | '.join(heads)} |",
            "|---" * (len(heads) + 1) + "|",
            *rows,
            "",
            f"{figures.origin()};\nmedians of {runs} pairs of runs, {figures.steps} steps in each, "
            f"`MEDUSAQ_KV_CELLS={figures.kv_cells}`.",
            "",
        ]
    )


def _entry(point: Point | None) -> str:
    if point is None:
        return ""
    ours, theirs, ratio = map(median, (point.ours_ms, point.llama_cpp_ms, point.ratios))
    return f"{ours:.1f}, {theirs:.1f}, {ratio:.2f}"


def main() -> None:
    figures = Figures.read(FIGURES)
    PICTURE.write_text(draw(figures), encoding="utf-8")
    put_between(CHART_PAGE, BLOCK, block(figures))
    put_between(TABLE_PAGE, BLOCK, table(figures))


if __name__ == "__main__":
    main()
