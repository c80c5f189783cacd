"""Splits the input into files of batch lines, each small enough for one batch, and records their order.

RESULTS.run/order.jsonl has a line for each input line: [number, custom_id] if it is sent, else its finished
result line.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from cli.base.errors import writing
from cli.prompts.prompt_reader import PromptLine
from cli.run.folder import RunFolder
from cli.run.result_lines import dump, invalid
from cli.run.state import Part
from common.atomic_write import sync_file, sync_path
from tasks.records.endpoints import JOBS

MAX_LINES = 50_000  # what a gateway takes by default, as OpenAI's does
MAX_BYTES = 190_000_000  # under their 200 MB


@dataclass(frozen=True, slots=True)
class Sent:
    """A line that is sent in a part: its number in the input, from 1, and its custom_id."""

    number: int
    custom_id: str


class PartFiles:
    """A context manager that writes the parts. Afterwards parts is complete, and all files are durable."""

    def __init__(self, folder: RunFolder, most_lines: int = MAX_LINES, most_bytes: int = MAX_BYTES) -> None:
        self.parts: list[Part] = []
        self._folder = folder
        self._most_lines, self._most_bytes = most_lines, most_bytes
        self._file: IO[bytes] | None = None
        self._bytes = 0

    def __enter__(self) -> PartFiles:
        with writing(self._folder.order):
            self._folder.part(1).parent.mkdir(exist_ok=True)
            self._order = self._folder.order.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with writing(self._folder.order), self._order, self._file or contextlib.nullcontext():
            if kind is None:
                self._close_part()
                sync_file(self._order)
                sync_path(self._folder.part(1).parent)
                sync_path(self._folder.path)

    def add(self, line: PromptLine) -> None:
        """Write a line. Raises CliError if the disk is full."""
        with writing(self._folder.order):
            if line.problems:
                self._order.write(dump(invalid(line)))
            else:
                self._order.write(dump([line.number, line.custom_id]))
                self._send(line)

    def _send(self, line: PromptLine) -> None:
        value = {"custom_id": line.custom_id, "method": "POST", "url": JOBS, "body": line.job}
        raw = dump(value)
        full = self.parts and (
            self.parts[-1].lines == self._most_lines or self._bytes + len(raw) > self._most_bytes
        )
        if self._file is None or full:
            self._close_part()
            self.parts.append(Part(lines=0))
            self._file = self._folder.part(len(self.parts)).open("wb")
        self._file.write(raw)
        self._bytes += len(raw)
        self.parts[-1].lines += 1

    def _close_part(self) -> None:
        if self._file is not None:
            sync_file(self._file)
            self._file.close()
        self._file, self._bytes = None, 0


def order(folder: RunFolder) -> Iterator[Sent | Mapping[str, Any]]:
    """For each input line: Sent, or its result line if it was invalid."""
    with folder.order.open("rb") as lines:
        for line in lines:
            value = json.loads(line)
            yield Sent(*value) if isinstance(value, list) else value
