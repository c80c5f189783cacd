"""What reports are made of, as a table in the terminal and as a page that needs nothing beside it."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

TEMPLATE = "report.html.jinja"
PIPE_WIDTH = 200  # characters; a pipe has no width, and a reader may look for any cell


@dataclass(frozen=True, slots=True)
class Table:
    """text: the columns that are aligned left. best: the index of the row that is set off."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: Collection[str]
    best: int | None = None

    def show(self) -> None:
        """Print it to standard output; on a terminal, cells that have no room are cut."""
        from rich import table
        from rich.console import Console
        from rich.text import Text

        drawn = table.Table(box=None, pad_edge=False)
        for name in self.columns:
            drawn.add_column(
                name, justify="left" if name in self.text else "right", overflow="ellipsis", no_wrap=True
            )
        for index, row in enumerate(self.rows):
            drawn.add_row(*map(Text, row), style="bold" if index == self.best else None)
        console = Console()
        if not console.is_terminal:
            console.width = PIPE_WIDTH
        console.print(drawn)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under a title of its own. texts: by the title of each."""

    title: str
    failure: str = ""
    table: Table | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    items: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """about, verdict, charts and table come first, in this order. charts: in words, for who cannot see."""

    title: str
    about: str
    charts: str
    table: Table
    verdict: str = ""
    notes: Sequence[str] = ()
    sections: Sequence[Section] = ()

    def page(self, png: bytes) -> str:
        """HTML with the charts inside it."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        templates = Environment(
            loader=PackageLoader("cli.reports"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return templates.get_template(TEMPLATE).render(report=self, png=base64.b64encode(png).decode("ascii"))
