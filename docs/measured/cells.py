"""The chart of step time by cells: what the benchmark `cells` recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from docs.measured.figures import Table
from docs.pictures.svg import card, text

PICTURE = Path(__file__).with_suffix(".svg")
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
        """llama.cpp's to ours, of each pair of runs."""
        return [theirs / ours for ours, theirs in zip(self.ours_ms, self.llama_cpp_ms, strict=True)]

    def line(self) -> str:
        ratios = self.ratios
        return (
            f"{self.requests:>2} requests, {self.cells:>4} cells: ours {median(self.ours_ms):6.1f} ms, "
            f"llama.cpp {median(self.llama_cpp_ms):6.1f} ms, "
            f"ratio {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


def draw(table: Table) -> str:
    """Medians over cells, both axes logarithmic: a line for each number of requests, llama.cpp's dashed."""
    points = [Point(**each) for each in table.data["points"]]
    medians = [value for point in points for value in (median(point.ours_ms), median(point.llama_cpp_ms))]
    all_cells = sorted({point.cells for point in points})
    x = _scale(all_cells[0], all_cells[-1], LEFT + 24, RIGHT - 16)
    y = _scale(min(medians), max(medians), BOTTOM - 16, TOP + 12)
    body = [text(24, 38, TITLE, 18, bold=True), *_legend(), *_axes(all_cells, x, y)]
    for n, requests in enumerate(sorted({point.requests for point in points})):
        curve, kind = _curve(points, requests), KINDS[n % len(KINDS)]
        ours = [(x(point.cells), y(median(point.ours_ms))) for point in curve]
        theirs = [(x(point.cells), y(median(point.llama_cpp_ms))) for point in curve]
        body += _ours(kind, ours) + _theirs(theirs)
        body += [text(RIGHT + 12, ours[-1][1] + 4, _requests(requests), 13, bold=True)]
    body += [text(24, HEIGHT - 20, table.origin(), 12, "muted")]
    told = "; ".join(point.line() for point in sorted(points, key=lambda each: (each.requests, each.cells)))
    return card(WIDTH, HEIGHT, f"{TITLE}: {told}", body)


def columns(all_requests: Sequence[int]) -> list[str]:
    """Of the table: a column for each number of requests."""
    return ["cells each", *map(_requests, all_requests)]


def row(cells: int, all_requests: Sequence[int], points: Sequence[Point]) -> list[str]:
    """Of the table: medians of ours, of llama.cpp's, and of the ratios."""
    found = {point.requests: point for point in points if point.cells == cells}
    return [f"{cells:,}", *(_entry(found.get(requests)) for requests in all_requests)]


def _entry(point: Point | None) -> str:
    if point is None:
        return ""
    ours, theirs, ratio = map(median, (point.ours_ms, point.llama_cpp_ms, point.ratios))
    return f"{ours:.1f}, {theirs:.1f}, {ratio:.2f}"


def _requests(count: int) -> str:
    return f"{count} request{'' if count == 1 else 's'}"


def _curve(points: Sequence[Point], requests: int) -> list[Point]:
    return sorted((p for p in points if p.requests == requests), key=lambda point: point.cells)


def _scale(least: float, most: float, first: float, last: float) -> Scale:
    """A logarithmic scale from values to pixels."""
    width = math.log(most / least) or 1.0
    return lambda value: first + (last - first) * math.log(value / least) / width


def _axes(all_cells: Sequence[int], x: Scale, y: Scale) -> list[str]:
    body = []
    for cells in all_cells:
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
