"""A compilation as a table, as charts and as a page."""

from __future__ import annotations

from cli.reports.charts import BLUE, GREY, Bars, Chart, Lines, Series
from cli.reports.report import Report, Section, Table
from common.units import size
from compiling.measure.speed import SLOTS
from compiling.result.compilation import COUNTS, Compiled, Row
from compiling.result.recommendation import Load

COLUMNS = (
    "type",
    "size",
    "load",
    "memory",
    "T(1)",
    f"T({SLOTS})",
    "prefill",
    "bulk",
    "ratio",
    "KL",
    "top-1",
    "perplexity",
)
EXPLAINED = (
    "T(n): milliseconds of a decode call of n rows. Prefill: tokens/s of a prompt. Bulk: tokens/s of {slots} "
    "requests at once, prompts included; ratio: to the source, of {ratio}. Memory: the most that the process "
    "held. KL: mean divergence from the source's exact values in nats a token; top-1: share of tokens after "
    "which both hold the same one for the likeliest; perplexity of the exact values: {exact:.2f}."
)


CHARTS = "Speed, divergence, and time by rows"
LEAST_KL = 1e-7  # where a logarithmic axis shows 0


def report(compiled: Compiled, title: str) -> Report:
    return Report(
        title,
        f"{compiled.machine}. llama.cpp: {compiled.build}",
        CHARTS,
        table(compiled),
        verdict(compiled),
        [explained(compiled), *compiled.left_out],
        [
            Section("T(n), in milliseconds", table=_times(compiled)),
            Section("Files", items=[f"{row.type}: {row.path}" for row in compiled.rows]),
        ],
    )


def table(compiled: Compiled) -> Table:
    """A row for each measured file; the recommended one is set off."""
    value = COUNTS[compiled.options.load]
    rows = [_row(row, f"{row.ratio(compiled.rows[0], value):.2f}x") for row in compiled.rows]
    return Table(COLUMNS, rows, COLUMNS[:1], _best(compiled))


def explained(compiled: Compiled) -> str:
    """What the columns mean."""
    ratio = "bulk" if compiled.options.load is Load.BULK else "T(1), as speed"
    return EXPLAINED.format(slots=SLOTS, ratio=ratio, exact=compiled.exact.perplexity)


def verdict(compiled: Compiled) -> str:
    """The recommendation in a sentence."""
    found = compiled.recommendation
    return f"{'recommended' if found.fits else 'closest'}: {found.type}: {found.reason}"


def charts(compiled: Compiled) -> list[Chart]:
    """Speed in bulk and alone, divergence, and T(n)."""
    best = _best(compiled)
    speeds = {row.type: row.speed for row in compiled.rows}
    colours = [BLUE if index == best else GREY for index in range(len(compiled.rows))]
    bulk = {type: speed.bulk_per_s for type, speed in speeds.items()}
    alone = {type: speed.alone_per_s for type, speed in speeds.items()}
    divergence = {row.type: max(LEAST_KL, row.quality.kl) for row in compiled.rows}
    times = [
        Series(
            [*speed.row_s],
            [seconds * 1e3 for seconds in speed.row_s.values()],
            type,
            width=2.5 if index == best else 1.0,
            marker="o",
        )
        for index, (type, speed) in enumerate(speeds.items())
    ]
    return [
        Bars(f"Tokens a second, {SLOTS} requests", bulk, "{:.0f}", colours),
        Bars("Tokens a second, one request", alone, "{:.0f}", colours),
        Bars(
            "KL divergence from the source, nats a token",
            divergence,
            "{:.1e}",
            colours,
            logarithmic=True,
            limit=compiled.options.max_kl,
        ),
        Lines("T(n): milliseconds of a call of n rows", "n", "", times),
    ]


def _best(compiled: Compiled) -> int | None:
    types = [row.type for row in compiled.rows]
    best = compiled.recommendation.type
    return types.index(best) if best in types else None


def _row(row: Row, ratio: str) -> tuple[str, ...]:
    speed, quality = row.speed, row.quality
    last = speed.row_s.get(SLOTS)
    return (
        row.type,
        size(row.bytes),
        f"{speed.load_s:.2f} s",
        size(speed.peak_bytes),
        f"{speed.row_s[1] * 1e3:.1f}",
        "-" if last is None else f"{last * 1e3:.1f}",
        f"{speed.prefill_per_s:.0f}",
        f"{speed.bulk_per_s:.1f}",
        ratio,
        f"{quality.kl:.1e}",
        f"{quality.top1:.1%}",
        f"{quality.perplexity:.2f}",
    )


def _times(compiled: Compiled) -> Table:
    sizes = sorted(compiled.rows[0].speed.row_s)
    rows = [
        (row.type, *(f"{row.speed.row_s[n] * 1e3:.1f}" if n in row.speed.row_s else "-" for n in sizes))
        for row in compiled.rows
    ]
    return Table(("type", *(f"n = {n}" for n in sizes)), rows, ("type",), _best(compiled))
