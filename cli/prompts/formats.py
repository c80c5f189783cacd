"""Formats of prompt files, and how the format of an input is found."""

from __future__ import annotations

from enum import StrEnum

from tables.base.kinds import Kind


class Format(StrEnum):
    """The format of an input. JSON lines may be requests or rows of a table; batch lines are requests."""

    AUTO = "auto"
    BATCH = "batch"
    JSONL = "jsonl"
    TEXT = "text"
    CSV = "csv"
    TSV = "tsv"
    JSON = "json"
    PARQUET = "parquet"
    XLSX = "xlsx"
    FOLDER = "folder"


OF_KIND = {
    Kind.CSV: Format.CSV,
    Kind.TSV: Format.TSV,
    Kind.PARQUET: Format.PARQUET,
    Kind.XLSX: Format.XLSX,
    Kind.LINES: Format.JSONL,
    Kind.ARRAY: Format.JSON,
    Kind.TEXT: Format.TEXT,
    Kind.FOLDER: Format.FOLDER,
}
KIND_OF = {form: kind for kind, form in OF_KIND.items()}
REQUESTS_OR_ROWS = (Format.JSONL, Format.TEXT)  # the options decide
