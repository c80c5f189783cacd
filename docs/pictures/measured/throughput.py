"""The chart of bulk throughput: `python -m docs.pictures.measured.throughput` draws it from throughput.json.

The benchmark `throughput` (`make bench`) writes that file. The README gets the chart and what made it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from docs.pictures.measured.blocks import put_between
from docs.pictures.measured.figures import Measured
from docs.pictures.svg import box, card, text

FIGURES = Path(__file__).with_suffix(".json")
PICTURE = Path(__file__).with_suffix(".svg")
README = Path(__file__).parents[3] / "README.md"
BLOCK = "throughput"
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 300, 770, 76, 38, 24


@dataclass(frozen=True, slots=True)
class System:
    """tokens_per_s: of each run. ours: medusaq, not what it is compared with."""

    name: str
    ours: bool
    tokens_per_s: list[float]


@dataclass(frozen=True, slots=True)
class Figures(Measured):
    """One run of the benchmark. output_tokens: of each request, at most."""

    requests: int
    output_tokens: int
    systems: list[System]

    @classmethod
    def read(cls, path: Path) -> Figures:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(**(found | {"systems": [System(**each) for each in found["systems"]]}))

    def about(self) -> str:
        return f"{self.requests} prompts, at most {self.output_tokens} tokens each, {self.origin()}"


def draw(figures: Figures) -> str:
    """Medians as bars, the runs beside them; the slowest above."""
    systems = sorted(figures.systems, key=lambda each: median(each.tokens_per_s))
    longest = median(systems[-1].tokens_per_s)
    title = "Generated tokens a second, the same prompts"
    body = [text(24, 38, title, 18, bold=True), text(24, 60, "longer is faster", 12, "muted")]
    for n, system in enumerate(systems):
        y, middle = TOP + n * ROW, median(system.tokens_per_s)
        length = (RIGHT - LEFT) * middle / longest
        kind = "model-solid" if system.ours else "outside-solid"
        body += [text(LEFT - 12, y + 17, system.name, 13, anchor="end", bold=system.ours)]
        body += [box(kind, LEFT, y, round(length, 1), BAR, 4)]
        body += [text(LEFT + length + 10, y + 17, f"{middle:.1f}", 13, bold=system.ours)]
    foot = TOP + len(systems) * ROW
    body += [text(24, foot + 22, figures.about(), 12, "muted")]
    told = "; ".join(f"{each.name} {median(each.tokens_per_s):.1f}" for each in systems)
    return card(WIDTH, foot + 42, f"{title}: {told}", body)


def block(figures: Figures) -> str:
    """What the README says."""
    about = "Generated tokens a second of medusaq and what it is compared with"
    return f"![{about}](docs/pictures/measured/{PICTURE.name})\n\n{_words(figures)}\n"


def _words(figures: Figures) -> str:
    return (
        f"{figures.about()};\nmedians of the runs in [{FIGURES.name}]"
        f"(docs/pictures/measured/{FIGURES.name}), "
        "written by `make bench`.\n[Measurements](docs/reference/measurements.md) says where it loses."
    )


def main() -> None:
    figures = Figures.read(FIGURES)
    PICTURE.write_text(draw(figures), encoding="utf-8")
    put_between(README, BLOCK, block(figures))


if __name__ == "__main__":
    main()
