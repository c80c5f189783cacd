"""DuckDB, which reads and writes Parquet in constant memory; and SQL text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

MEMORY = "200MB"  # of the buffers of a database in a file; what does not fit goes to the disk
READ_MEMORY = "700MB"  # a column of a row group must fit: 50,000 texts of 3.5 kB take 400 MB to unpack


def connect(database: Path | None = None) -> duckdb.DuckDBPyConnection:
    """A database in memory or in a file, which may not load extensions."""
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": MEMORY if database is not None else READ_MEMORY,
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    if database is None:
        config["temp_directory"] = ""
    made = duckdb.connect(str(database) if database is not None else ":memory:", config=config)
    made.execute("SET TimeZone = 'UTC'")
    return made


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string in SQL."""
    return "'" + text.replace("'", "''") + "'"


def first_line(error: Exception) -> str:
    """The message of DuckDB without the excerpt of our SQL."""
    return str(error).partition("\n")[0].strip()


EXACT = re.compile(
    r"(BOOLEAN|U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR|BLOB|DATE|TIMESTAMP)"
    r"(\[\d*\])*"
)


def is_exact(kind: str) -> bool:
    """Whether Python has a type that holds all values of this SQL type, or of lists of it.

    Values of other types are passed as DuckDB's text for them.
    """
    return EXACT.fullmatch(kind) is not None
