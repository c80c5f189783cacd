"""The chart of medusaq beside what else can be installed: what the benchmark `peers` recorded."""

from __future__ import annotations

from pathlib import Path

from docs.measured.figures import Table
from docs.pictures.svg import box, card, text

PICTURE = Path(__file__).with_suffix(".svg")
TITLE = "Generated tokens a second, the same prompts"
OURS, ENGINE = "medusaq run", "medusaq, engine alone"
WIDTH, LEFT, RIGHT, TOP, ROW, BAR, GAP = 860, 300, 770, 76, 24, 18, 14


def draw(table: Table) -> str:
    """Medians as bars, in groups of so many requests at once; in a group the slowest above."""
    groups: dict[str, dict[str, float]] = table.data
    longest = max(speed for group in groups.values() for speed in group.values())
    body = [text(24, 38, TITLE, 18, bold=True), text(24, 60, "longer is faster", 12, "muted")]
    y = TOP
    for at_once, group in groups.items():
        body += [text(24, y + 14, f"{at_once} at once", 13, bold=True)]
        for name, speed in sorted(group.items(), key=lambda each: each[1]):
            ours, length = name in (OURS, ENGINE), (RIGHT - LEFT) * speed / longest
            body += [text(LEFT - 12, y + 14, name, 13, anchor="end", bold=ours)]
            body += [box("model-solid" if ours else "outside-solid", LEFT, y, round(length, 1), BAR, 4)]
            body += [text(LEFT + length + 10, y + 14, f"{speed:.1f}", 13, bold=ours)]
            y += ROW
        y += GAP
    body += [text(24, y + 14, table.origin(), 12, "muted")]
    told = "; ".join(
        f"{at_once} at once: {', '.join(f'{name} {speed:.1f}' for name, speed in group.items())}"
        for at_once, group in groups.items()
    )
    return card(WIDTH, y + 34, f"{TITLE}: {told}", body)
