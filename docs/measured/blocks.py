"""The parts of documents that are rendered from recorded tables.

`<!-- figures: NAME -->` gets the table of that name for each processor that measured it,
`<!-- chart: NAME -->` the picture of the newest; either reaches to `<!-- /figures -->` or `<!-- /chart -->`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from docs.measured.figures import Table, newest

BLOCK = re.compile(r"(<!-- (figures|chart): ([\w-]+) -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL)
FIGURES, CHART = "figures", "chart"
Charts = Mapping[str, tuple[str, Path]]  # title and picture by name
NOTHING = "*Not measured yet.*\n"


def names(page: str, kind: str) -> list[str]:
    """Of its blocks of this kind."""
    return [name for _, found, name, _, _ in BLOCK.findall(page) if found == kind]


def without_blocks(page: str) -> str:
    return BLOCK.sub("", page)


def rendered(page: str, folder: Path, tables: Sequence[Table], charts: Charts) -> str:
    """The page with all blocks as the tables say; folder: of the page."""

    def block(found: re.Match[str]) -> str:
        begin, kind, name, _, end = found.groups()
        if kind == CHART:
            return begin + _chart(newest(name, tables), folder, *charts[name]) + end
        return begin + ("\n".join(shown(each) for each in tables if each.name == name) or NOTHING) + end

    return BLOCK.sub(block, page)


def shown(table: Table) -> str:
    """The table, its notes, and what made it, as Markdown."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in lines]
    notes = ["", *table.notes] if table.notes else []
    return "\n".join([*rows, *notes, "", f"*{table.origin()}:* `{table.command}`", ""])


def _chart(table: Table | None, folder: Path, title: str, picture: Path) -> str:
    if table is None:
        return NOTHING
    return f"![{title}]({os.path.relpath(picture, folder)})\n\n*{table.origin()}.*\n"
