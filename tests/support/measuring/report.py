"""How benchmarks tell what they measured: tables, printed row by row, and recorded when they are whole."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import llama_cpp

from common.processor import EXTENSIONS, processor, usable_cores
from docs.measured.figures import FIGURES, Table, record
from tests.support.measuring.revision import commit

SCRIPTED_ENGINE = "a scripted engine"  # in the place of a model
FEATURE_NAMES = {"amx_bf16": "AMX_INT8", "avx512f": "AVX512"}  # of llama.cpp; else Linux's, in capitals
FIRST, OTHERS = 34, 10  # characters of a column at least


@dataclass
class Rows:
    """Of one table."""

    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def row(self, *cells: object) -> None:
        assert len(cells) == len(self.columns), (self.columns, cells)
        self.rows.append([str(cell) for cell in cells])
        self._print(self.rows[-1])

    def note(self, sentence: str) -> None:
        """For below the table."""
        self.notes.append(sentence)
        print(sentence, flush=True)

    def head(self) -> None:
        self._print(self.columns)

    def _print(self, cells: Sequence[str]) -> None:
        widths = [FIRST, *(max(OTHERS, len(column)) for column in self.columns[1:])]
        shown = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(shown.rstrip(), flush=True)


class Report:
    """command: as a reader would give it. path: where to record, or None. model: that most tables are of."""

    def __init__(self, command: str, path: Path | None = None, model: str = "") -> None:
        self._command, self._path, self._model = command, path, model
        self._code = commit()

    @contextmanager
    def table(self, name: str, *columns: str, model: str | None = None, keep: bool = True) -> Iterator[Rows]:
        """Recorded at the end of the block, unless it raises. keep: or not at all."""
        rows = Rows(columns)
        rows.head()
        yield rows
        if self._path is None or not keep or not rows.rows:
            return
        model = self._model if model is None else model
        table = Table(
            name=name,
            processor=processor() if model == SCRIPTED_ENGINE else measured_on(),
            cores=usable_cores(),
            date=datetime.now(UTC).date().isoformat(),
            commit=self._code,
            model=model,
            command=self._command,
            columns=list(columns),
            rows=rows.rows,
            notes=rows.notes,
            data=rows.data,
        )
        record(table, self._path)


def measured_on() -> str:
    """The processor, and what llama.cpp was compiled for if that is less."""
    features = llama_cpp.llama_print_system_info().decode()
    return processor(
        [flag for flag in EXTENSIONS if f"{FEATURE_NAMES.get(flag, flag.upper())} = 1" in features]
    )


def add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record",
        nargs="?",
        type=_json_file,
        const=FIGURES,
        metavar="FILE",
        help="record the tables, in the place of earlier ones of this processor (default: of the documents)",
    )


def _json_file(name: str) -> Path:
    if not Path(name).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{name}: there is no such folder")
    return Path(name)


def shown_command(module: str, arguments: Sequence[str], only: str = "") -> str:
    """A command without what says where to record, and without the folders of files.

    only: the one part of several that the command is to name.
    """
    words, left_out = ["python", "-m", module, *(["--only", only] if only else [])], False
    for word in arguments:
        if word.startswith("-"):
            left_out = word.partition("=")[0] in ("--record", *(["--only"] if only else []))
        if not left_out:
            words.append(f"PATH/{Path(word).name}" if "/" in word else word)
    return shlex.join(words)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median of some runs, and their least and most."""
    if len(values) == 1:
        return f"{values[0]:,.{digits}f}"
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
