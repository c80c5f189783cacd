"""Opens a table of any kind."""

from __future__ import annotations

from pathlib import Path

from tables.base.errors import TableError
from tables.base.kinds import ENDINGS, Kind, kind_of
from tables.base.table import Table

GLOB = "*?["


def open_table(source: str | Path, *, name: str | None = None, kind: Kind | None = None) -> Table:
    """Open a file, a folder of text files, or a pattern of them such as docs/*.txt.

    name: by which messages and the ending know it, if not that of the source. Raises TableError.
    """
    path, name = Path(source), name or str(source)
    if kind is None:
        kind = Kind.FOLDER if is_many(path) else kind_of(name)
    if kind is None:
        known = ", ".join(ENDINGS)
        raise TableError(f"{name}: unknown kind of table; the known endings are {known}")
    return _opened(path, name, kind)


def is_many(path: Path) -> bool:
    """Whether the path is a folder or a pattern."""
    return path.is_dir() or (any(character in path.name for character in GLOB) and not path.exists())


def _opened(path: Path, name: str, kind: Kind) -> Table:
    from tables.sources import text_tables

    if kind is Kind.FOLDER:
        return text_tables.FilesTable(files_of(path), name)
    if path.is_dir():
        raise TableError(f"{name} is a folder")
    if kind is Kind.PARQUET:
        from tables.sources.parquet_table import ParquetTable

        return ParquetTable(path, name)
    if kind is Kind.XLSX:
        from tables.sources.xlsx_table import XlsxTable

        return XlsxTable(path, name)
    if kind in (Kind.LINES, Kind.ARRAY):
        from tables.sources.json_tables import JsonTable

        return JsonTable(path, name)
    if kind is Kind.TEXT:
        return text_tables.LinesTable(path, name)
    from tables.sources.csv_table import CsvTable

    return CsvTable(path, name, kind)


def files_of(path: Path) -> list[Path]:
    """The text files of a folder, or those that a pattern matches. Raises TableError."""
    from tables.sources.text_tables import text_files

    try:
        if path.is_dir():
            return text_files(path)
        matching = path.parent.glob(path.name)
        return sorted(found for found in matching if found.is_file() and not found.name.startswith("."))
    except OSError as error:
        raise TableError(f"cannot read {path}: {error.strerror}") from None
