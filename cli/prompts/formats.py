"""How prompt files are written: cli/prompts/record_reader.py reads them."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """How a prompt file is written; jsonl takes batch lines too."""

    AUTO = "auto"
    BATCH = "batch"
    JSONL = "jsonl"
    TEXT = "text"
    CSV = "csv"
