"""Creates a table of the kind that its name asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tables.base.errors import TableError
from tables.base.kinds import Kind, output_kind
from tables.base.table import checked_columns
from tables.targets.writer import TableWriter


def create_table(
    path: Path,
    columns: Sequence[str],
    *,
    name: str | None = None,
    types: Mapping[str, str] | None = None,
    safe_csv: bool = False,
    scratch: Path | None = None,
) -> TableWriter:
    """Begin a table at the path, whose content is complete after the writer's block.

    name: tells the kind, if the path does not. types: SQL types of columns, for formats that have types.
    safe_csv: in CSV and TSV, put a quote before text that a spreadsheet program would run as a formula.
    scratch: a folder for temporary files. Raises TableError.
    """
    name = name or path.name
    kind = output_kind(name)
    columns = checked_columns(columns, name)
    if safe_csv and kind not in (Kind.CSV, Kind.TSV):
        raise TableError(f"{name}: quotes before formulas are for CSV and TSV; other kinds do not need them")
    if kind is Kind.PARQUET:
        from tables.targets.parquet_writer import ParquetWriter

        return ParquetWriter(path, name, columns, types or {}, scratch or path.parent)
    if kind is Kind.XLSX:
        from tables.targets.xlsx_writer import XlsxWriter

        return XlsxWriter(path, name, columns)
    from tables.targets.text_writers import CsvWriter, LinesWriter

    if kind is Kind.LINES:
        return LinesWriter(path, name, columns)
    return CsvWriter(path, name, columns, "\t" if kind is Kind.TSV else ",", safe=safe_csv)
