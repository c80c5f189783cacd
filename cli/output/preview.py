"""The first rows of a table of results, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from cli.base.errors import CliError
from cli.base.units import shortened
from tables.base.errors import TableError
from tables.base.values import text_of
from tables.sources.open_table import open_table


def show_rows(results: Path, count: int, console: Console) -> None:
    """Print the first rows. Raises CliError."""
    try:
        table = open_table(results)
        grid = Grid(*(Column(Text(column)) for column in table.columns), show_lines=True)
        for row in islice(table.rows(), count):
            grid.add_row(*(Text(shortened(text_of(value))) for value in row.values))
    except TableError as error:
        raise CliError(str(error)) from None
    console.print(grid)


def beginnings(results: Path, columns: Sequence[str], count: int) -> Iterator[str]:
    """The number and the start of the answer in each of the first rows. columns: those of the answer."""
    try:
        table = open_table(results)
        places = [table.columns.index(column) for column in columns]
        for row in islice(table.rows(), count):
            values = (shortened(text_of(row.values[place])) for place in places)
            yield f"row-{row.number}: {', '.join(values)}"
    except TableError as error:
        raise CliError(str(error)) from None
