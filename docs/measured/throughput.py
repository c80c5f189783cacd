"""The chart of bulk throughput: what the benchmark `throughput` recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from docs.measured.figures import Table
from docs.pictures.svg import box, card, text

PICTURE = Path(__file__).with_suffix(".svg")
TITLE = "Generated tokens a second, the same prompts"
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 300, 770, 76, 38, 24


@dataclass(frozen=True, slots=True)
class System:
    """tokens_per_s: of each run. ours: medusaq, not what it is compared with."""

    name: str
    ours: bool
    tokens_per_s: list[float]


def draw(table: Table) -> str:
    """Medians as bars; the slowest above."""
    found = [System(**each) for each in table.data["systems"]]
    systems = sorted(found, key=lambda each: median(each.tokens_per_s))
    longest = median(systems[-1].tokens_per_s)
    body = [text(24, 38, TITLE, 18, bold=True), text(24, 60, "longer is faster", 12, "muted")]
    for n, system in enumerate(systems):
        y, middle = TOP + n * ROW, median(system.tokens_per_s)
        length = (RIGHT - LEFT) * middle / longest
        kind = "model-solid" if system.ours else "outside-solid"
        body += [text(LEFT - 12, y + 17, system.name, 13, anchor="end", bold=system.ours)]
        body += [box(kind, LEFT, y, round(length, 1), BAR, 4)]
        body += [text(LEFT + length + 10, y + 17, f"{middle:.1f}", 13, bold=system.ours)]
    foot = TOP + len(systems) * ROW
    body += [text(24, foot + 22, table.origin(), 12, "muted")]
    told = "; ".join(f"{each.name} {median(each.tokens_per_s):.1f}" for each in systems)
    return card(WIDTH, foot + 42, f"{TITLE}: {told}", body)
