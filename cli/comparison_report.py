"""A comparison as rows, as a table in the terminal, and as a page that needs nothing beside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from cli.compare import WAYS, Compared, together
from tasks.job import Decoding

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "prompt",
    "decoding",
    "tokens",
    "seconds",
    "tokens/s",
    "speed-up",
    "tokens/step",
    "acceptance",
    "text",
)
TEXT_COLUMNS = ("prompt", "decoding", "text")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child, td.text, th.text { text-align: left }
img { max-width: 100% }
.texts { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .8rem; margin: 0 }
h3 { font-size: 1rem; margin: 0 0 .3rem }
.failed { color: #a00 }
"""


def rows(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    """One of COLUMNS for each prompt and way; for several prompts, also of all together."""
    good = [one for one in compared if one.failure is None]
    found = [row for one in good for row in _rows(one)]
    if len(good) > 1:
        whole = together(good)
        same = {way: sum(one.same_text(way) for one in good) for way in WAYS}
        for way, row in zip(WAYS, _rows(whole), strict=True):
            text = "-" if way is Decoding.NORMAL else f"{same[way]} of {len(good)} same"
            found.append((*row[:-1], text))
    return found


def table(compared: Sequence[Compared]) -> Table:
    """For a terminal; a line is drawn under each prompt."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        drawn.add_column(
            name, justify="left" if name in TEXT_COLUMNS else "right", overflow="ellipsis", no_wrap=True
        )
    for row in rows(compared):
        drawn.add_row(*map(Text, row))
    return drawn


def page(compared: Sequence[Compared], title: str, png: bytes) -> str:
    """HTML with the charts inside it."""
    head = "".join(f"<th{_class(name)}>{escape(name)}</th>" for name in COLUMNS)
    body = "\n".join(f"<tr>{_cells(row)}</tr>" for row in rows(compared))
    charts = base64.b64encode(png).decode("ascii")
    sections = "\n".join(_section(number, one) for number, one in enumerate(compared, 1))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>Seconds leave the queue out. Speed-up is in tokens a second, over decoding <em>normal</em>; text says
whether the answer is that of <em>normal</em>: outside batch-invariant mode, rounding may tip a near-tie
between two tokens.</p>
<img alt="Tokens a second, time, tokens, and acceptance with speed-up" src="data:image/png;base64,{charts}">
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
{sections}
</body>
</html>
"""


def _rows(one: Compared) -> list[tuple[str, ...]]:
    return [_row(one, way) for way in WAYS]


def _row(one: Compared, way: Decoding) -> tuple[str, ...]:
    answer, first = one.answers[way], way is Decoding.NORMAL
    return (
        one.title if first else "",
        way.value,
        f"{answer.tokens:,}",
        f"{answer.seconds:.2f}",
        f"{answer.tokens_per_s:.1f}",
        "-" if first else _number(one.speed_up(way), "{:.2f}x"),
        _number(answer.tokens_per_step, "{:.2f}"),
        _number(answer.acceptance, "{:.0%}"),
        "-" if first else "same" if one.same_text(way) else "differs",
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _class(name: str) -> str:
    return ' class="text"' if name in TEXT_COLUMNS else ""


def _cells(row: Sequence[str]) -> str:
    return "".join(f"<td{_class(name)}>{escape(cell)}</td>" for name, cell in zip(COLUMNS, row, strict=True))


def _section(number: int, one: Compared) -> str:
    title = f"<h2>{number}. {escape(one.title)}</h2>"
    if one.failure is not None:
        return f'{title}\n<p class="failed">Not compared: {escape(one.failure)}</p>'
    texts = "\n".join(
        f"<div><h3>{way.value}</h3><pre>{escape(one.answers[way].text)}</pre></div>" for way in WAYS
    )
    return f'{title}\n<div class="texts">\n{texts}\n</div>'
