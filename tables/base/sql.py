"""DuckDB, which reads and writes Parquet in constant memory; and SQL text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tables.base.table import TEXT_TYPE

if TYPE_CHECKING:
    import duckdb
    from duckdb.sqltypes import DuckDBPyType

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
# Those that EXACT lacks and that become dates of Python, with microseconds.
TIMES = {"time", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp with time zone"}


def carrier(kind: str) -> str:
    """The SQL type in which values of this type pass through Python without a loss.

    The type itself if Python has one that holds all its values, or lists of them; else text, DuckDB's own.
    """
    return kind if EXACT.fullmatch(kind) else TEXT_TYPE


def python_type(kind: DuckDBPyType) -> str:
    """The SQL type whose values DuckDB gives as what a template can use: dicts, lists, dates, or text."""
    if kind.id in ("struct", "map", "list"):
        inner = {name: python_type(cast("DuckDBPyType", child)) for name, child in kind.children}
        if kind.id == "struct":
            return f"STRUCT({', '.join(f'{quoted(name)} {child}' for name, child in inner.items())})"
        return f"MAP({TEXT_TYPE}, {inner['value']})" if kind.id == "map" else f"{inner['child']}[]"
    return str(kind) if kind.id in TIMES else carrier(str(kind))
