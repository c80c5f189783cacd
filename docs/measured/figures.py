"""Tables that benchmarks measured, in one file: of each table one for each processor."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.atomic_write import atomic_write
from common.processor import COMPILED_FOR

FIGURES = Path(__file__).with_suffix(".json")
WIDTH = 120  # of the file's lines, but those of a list of texts or numbers


@dataclass(frozen=True, slots=True)
class Table:
    """One run of a benchmark.

    rows: as they are shown. notes: sentences below the table. data: what a chart or a simulation needs beside
    the rows. date, commit and model are empty where they are not known, or without effect.
    """

    name: str
    processor: str
    cores: int
    date: str
    commit: str
    model: str
    command: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def origin(self) -> str:
        """What was measured, where and when."""
        parts = [self.model, f"{self.cores} cores of {self.processor}", self.date]
        parts += [f"commit {self.commit}"] if self.commit else []
        return ", ".join(part for part in parts if part)


def read(path: Path = FIGURES) -> list[Table]:
    """Raises TypeError for a file of other fields."""
    if not path.exists():
        return []
    return [Table(**found) for found in json.loads(path.read_text(encoding="utf-8"))]


def record(table: Table, path: Path = FIGURES) -> None:
    """Put it in the place of an earlier one of the same processor, or after those of other processors.

    An earlier table whose processor has no family and model is of any with its name and instructions.
    """
    same = {table.processor, table.processor.partition(", family ")[0]}
    before = read(path)
    replaced = [old.name == table.name and old.processor in same for old in before]
    place = replaced.index(True) if any(replaced) else len(before)
    tables = [old for old, gone in zip(before, replaced, strict=True) if not gone]
    tables.insert(place, table)
    tables.sort(key=lambda each: each.name)
    lines = ",\n".join(_json(asdict(each), 0) for each in tables)
    atomic_write(path, f"[\n{lines}\n]\n", durable=False)


def newest(name: str, tables: Iterable[Table]) -> Table | None:
    """The one with the latest date, if possible of a llama.cpp that was compiled for its whole processor."""
    found = [table for table in tables if table.name == name]
    return max(found, key=lambda table: (COMPILED_FOR not in table.processor, table.date), default=None)


def _json(value: Any, depth: int) -> str:
    """In few lines that are not long."""
    whole = json.dumps(value, ensure_ascii=False)
    plain = isinstance(value, list) and not any(isinstance(one, (list, dict)) for one in value)
    if len(whole) + depth <= WIDTH or plain or not isinstance(value, (list, dict)):
        return whole
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{pad}{json.dumps(name)}: {_json(one, depth + 1)}" for name, one in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + " " * depth + "}"
    parts = [pad + _json(one, depth + 1) for one in value]
    return "[\n" + ",\n".join(parts) + "\n" + " " * depth + "]"
