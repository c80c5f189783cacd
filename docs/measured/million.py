"""The chart of a file of very many lines: what the benchmark `million` recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from docs.measured.figures import Table
from docs.pictures.svg import card, text

PICTURE = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT, LEFT, RIGHT = 860, 560, 84, 700
RATE, MEMORY = (84, 284), (340, 500)  # top and bottom of each panel
COLOURS = {"gateway": "gateway", "io worker": "io", "model worker": "model", "Redis": "redis"}
OTHER = "files"  # of the command
TITLE = "A file of many lines through `medusaq run`"
STEPS = 4  # lines of the grid of a panel
SHOWN = 60  # points of a curve: means over a sixtieth of the time

Curve = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Run:
    """at_s: since the start of the command. ended: lines by then. memory: bytes by process."""

    lines: int
    wall_s: float
    at_s: list[float]
    ended: list[int]
    memory: dict[str, list[int]]

    def rates(self) -> Curve:
        """Lines a second over time."""
        step = max(1, len(self.at_s) // SHOWN)
        points = list(zip(self.at_s[::step], self.ended[::step], strict=True))
        return [
            ((since + until) / 2, (after - before) / (until - since))
            for (since, before), (until, after) in pairwise(points)
        ]

    def megabytes(self, process: str) -> Curve:
        step = max(1, len(self.at_s) // SHOWN)
        sizes = (size / 2**20 for size in self.memory[process][::step])
        return list(zip(self.at_s[::step], sizes, strict=True))

    def summary(self) -> str:
        return f"{self.lines:,} lines in {self.wall_s:,.0f} s, {self.lines / self.wall_s:,.0f} a second"


def draw(table: Table) -> str:
    """Lines a second above, memory of each process below, over the same time."""
    run = Run(**table.data)
    rates = run.rates()
    memory = {process: run.megabytes(process) for process in run.memory}
    most = max(size for curve in memory.values() for _, size in curve)
    x = _scale(run.at_s[-1], LEFT, RIGHT)
    body = [text(24, 38, TITLE, 18, bold=True), text(24, 60, run.summary(), 13, "muted")]
    body += _panel(RATE, max(rate for _, rate in rates), "lines/s")
    body += [_line("io", rates, x, _panel_scale(RATE, max(rate for _, rate in rates)))]
    body += _panel(MEMORY, most, "MB")
    y, used = _panel_scale(MEMORY, most), list[float]()
    for process, curve in sorted(memory.items(), key=lambda item: -item[1][-1][1]):
        kind = COLOURS.get(process, OTHER)
        body += [_line(kind, curve, x, y)]
        at = max([y(curve[-1][1]) + 4, *(place + 16 for place in used[-1:])])
        used.append(at)
        body += [text(RIGHT + 12, round(at, 1), f"{process}, {curve[-1][1]:.0f} MB", 12, bold=True)]
    body += [text(RIGHT, HEIGHT - 36, f"{run.at_s[-1]:,.0f} s", 12, "muted", "end")]
    body += [text(LEFT, HEIGHT - 36, "0 s", 12, "muted")]
    body += [text(24, HEIGHT - 14, table.origin(), 12, "muted")]
    return card(WIDTH, HEIGHT, f"{TITLE}: {run.summary()}", body)


def _panel(place: tuple[int, int], most: float, unit: str) -> list[str]:
    y, body = _panel_scale(place, most), []
    for n in range(STEPS + 1):
        value = most * n / STEPS
        body += [f'<path class="line" stroke-opacity="0.25" d="M{LEFT} {y(value):.1f}H{RIGHT}"/>']
        body += [text(LEFT - 10, round(y(value), 1) + 4, f"{value:,.0f}", 12, "muted", "end")]
    return [*body, text(LEFT - 60, place[0] - 8, unit, 12, "muted")]


def _panel_scale(place: tuple[int, int], most: float) -> Callable[[float], float]:
    return _scale(most, place[1], place[0])


def _scale(most: float, first: float, last: float) -> Callable[[float], float]:
    return lambda value: first + (last - first) * value / most


def _line(
    kind: str, curve: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in curve)
    return f'<polyline class="{kind}-line" points="{points}"/>'
