"""Formats of prompt files; cli/prompts/record_reader.py parses them."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """The format of a prompt file; jsonl also accepts batch lines."""

    AUTO = "auto"
    BATCH = "batch"
    JSONL = "jsonl"
    TEXT = "text"
    CSV = "csv"
