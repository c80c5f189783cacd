"""A compilation as rows, as a table in the terminal, and as a page that needs nothing beside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from cli.comparison_report import STYLE
from compiling.compiled import COUNTS, Compiled, Row
from compiling.recommend import Load
from compiling.room import size
from compiling.speed import SLOTS

if TYPE_CHECKING:
    from rich.table import Table

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


def rows(compiled: Compiled) -> list[tuple[str, ...]]:
    """One of COLUMNS for each measured file."""
    value = COUNTS[compiled.options.load]
    return [_row(row, f"{row.ratio(compiled.rows[0], value):.2f}x") for row in compiled.rows]


def table(compiled: Compiled) -> Table:
    """For a terminal; the recommended one is set off."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        drawn.add_column(name, justify="left" if name == "type" else "right", no_wrap=True)
    for row, cells in zip(compiled.rows, rows(compiled), strict=True):
        best = row.type == compiled.recommendation.type
        drawn.add_row(*map(Text, cells), style="bold" if best else None)
    return drawn


def explained(compiled: Compiled) -> str:
    """What the columns mean."""
    ratio = "bulk" if compiled.options.load is Load.BULK else "T(1), as speed"
    return EXPLAINED.format(slots=SLOTS, ratio=ratio, exact=compiled.exact.perplexity)


def verdict(compiled: Compiled) -> str:
    """The recommendation in a sentence."""
    said = compiled.recommendation
    return f"{'recommended' if said.fits else 'closest'}: {said.type}: {said.reason}"


def page(compiled: Compiled, title: str, png: bytes) -> str:
    """HTML with the charts inside it."""
    charts = base64.b64encode(png).decode("ascii")
    left_out = "".join(f"<p>{escape(line)}</p>\n" for line in compiled.left_out)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{escape(title)}</title>
<style>{STYLE}tr.best {{ font-weight: bold }}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(compiled.machine)}. llama.cpp: {escape(compiled.build)}</p>
<p><strong>{escape(verdict(compiled))}</strong></p>
{_table(COLUMNS, rows(compiled), compiled)}
<p>{escape(explained(compiled))}</p>
{left_out}<img alt="Speed, divergence, and time by rows" src="data:image/png;base64,{charts}">
<h2>T(n), in milliseconds</h2>
{_table(*_times(compiled), compiled)}
<h2>Files</h2>
<ul>
{"".join(f"<li>{escape(row.type)}: {escape(row.path)}</li>" for row in compiled.rows)}
</ul>
</body>
</html>
"""


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


def _times(compiled: Compiled) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    sizes = sorted(compiled.rows[0].speed.row_s)
    found = [
        (row.type, *(f"{row.speed.row_s[n] * 1e3:.1f}" if n in row.speed.row_s else "-" for n in sizes))
        for row in compiled.rows
    ]
    return ("type", *(f"n = {n}" for n in sizes)), found


def _table(columns: Sequence[str], cells: Sequence[tuple[str, ...]], compiled: Compiled) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    best = compiled.recommendation.type
    lines = []
    for row in cells:
        inside = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        lines.append(f'<tr class="best">{inside}</tr>' if row[0] == best else f"<tr>{inside}</tr>")
    body = "\n".join(lines)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
