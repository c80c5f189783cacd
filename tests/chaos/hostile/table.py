"""The table of what a hostile key did to an honest one."""

from __future__ import annotations

from tests.chaos.hostile.beside import MAIN, Beside, p50_and_p95

NAME = "hostile"
HEAD = (
    "the hostile key's behaviour",
    "its answers",
    "job alone p50 / p95",
    "beside p50 / p95",
    "ratio of p95",
    "worst other kind: p95 alone, beside, ratio",
    "honest requests refused or wrong",
)


def row(title: str, found: Beside) -> tuple[str, ...]:
    shown = [" / ".join(map(_ms, p50_and_p95(phases, MAIN))) for phases in (found.alone, found.beside)]
    others = [kind for kind in found.kinds if kind != MAIN]
    worst = max(others, key=found.ratio)
    both = [_ms(p50_and_p95(phases, worst)[1]) for phases in (found.alone, found.beside)]
    answers = ", ".join(f"{count:,} {name}" for name, count in sorted(found.answers.items())) or "none"
    left = "; its work outlasted it" if found.unsettled else ""
    return (
        title,
        answers + left,
        *shown,
        f"{found.ratio(MAIN):.1f}",
        f"{worst}: {both[0]}, {both[1]}, {found.ratio(worst):.1f}",
        str(len(found.troubles)),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
