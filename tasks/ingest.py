"""Reads a batch's file once: every line is either refused or put into a chunk, in the order of sending.

Of each line stays in memory its custom id and where it lies; of a refused one, why. Stopped anywhere, it is
done again from the start, and writes the same chunks under the same names: what was sent by then is not sent
again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

from tasks.batch import Batch
from tasks.batch_files import INVALID, Result, dump_line, write_chunk, write_part
from tasks.batch_lines import LineDecoder, Refused, kind_of, physical_lines, prefix
from tasks.batches import BatchStore, Line
from tasks.errors import BatchNotFound, BatchRefused
from tasks.file_records import object_name
from tasks.files import FileStore, translated
from tasks.settings import Settings

CHUNK_LINES = 256
CHUNK_BYTES = 2 * 1024 * 1024  # held in memory for each batch under way
SHOWN_ERRORS = 100  # of a batch's record; the error file has them all
REPORT_LINES = 1000  # between two counts that a user sees
MAGIC_BYTES = 8


class Ingest:
    """One run over one batch's file."""

    def __init__(self, files: FileStore, batches: BatchStore, settings: Settings, token: str) -> None:
        """token: of the one who leads."""
        self._files, self._batches, self._settings, self._token = files, batches, settings, token

    def run(self, batch_id: str) -> None:
        """Raises BatchRefused for a file that is no batch at all, LeadLost, and what the stores raise.

        A batch that was read already is left as it is.
        """
        batch = self._batches.get(batch_id)
        if batch.validated or batch.ended:
            return
        with self._files.local_copy(object_name(batch.input_file_id)) as source:
            only = self._failed_before(batch)
            self._check(source)
            self._read(batch, source, only)

    def _check(self, source: BinaryIO) -> None:
        """What makes the whole file useless, before anything of it is sent."""
        kind = kind_of(source.read(MAGIC_BYTES))
        if kind is not None:
            raise BatchRefused("invalid_file", f"the file is {kind}, not JSON lines")
        source.seek(0)
        lines, most = sum(1 for _ in self._lines(source)), self._settings.max_batch_lines
        if not lines:
            raise BatchRefused("empty_file", "the file holds no line")
        if lines > most:
            raise BatchRefused("too_many_tasks", f"the file holds {lines:,} lines, and {most:,} is the most")
        source.seek(0)

    def _read(self, batch: Batch, source: BinaryIO, only: set[str] | None) -> None:
        settings = self._settings
        decoder = LineDecoder(
            batch.endpoint,
            settings.max_body_bytes,
            settings.default_max_tokens,
            batch.default_model,
            batch.choose_from,
        )
        invalid: list[Result] = []
        errors: list[dict[str, Any]] = []
        codes: Counter[str] = Counter()
        lines = 0
        with translated("temporary files"), tempfile.TemporaryFile() as scratch:
            ready = _Ready(scratch)
            for number, raw in self._lines(source):
                line = decoder.decode(number, raw)
                if only is not None and (line.custom_id is None or line.custom_id not in only):
                    continue
                lines += 1
                if isinstance(line, Refused):
                    codes[line.problem.code] += 1
                    invalid.append(_refusal(batch, line))
                    if len(errors) < SHOWN_ERRORS:
                        errors.append(_shown(line))
                elif not batch.dry_run:
                    ready.add(line)
                    if len(ready) == 1:  # at once, for early feedback
                        write_chunk(self._files, batch.id, 0, [dump_line(line)])
                        self._batches.chunks_ready(self._token, batch.id, 1, lines)
                if lines % REPORT_LINES == 0:
                    self._batches.chunks_ready(self._token, batch.id, min(1, len(ready)), lines)
            chunks = min(1, len(ready))
            for chunk in ready.chunks():
                write_chunk(self._files, batch.id, chunks, chunk)
                chunks += 1
        write_part(self._files, batch.id, INVALID, invalid)
        self._batches.validated(
            self._token,
            batch.id,
            chunks=chunks,
            lines=lines,
            invalid=codes,
            errors=errors,
            model=decoder.model,
        )

    def _lines(self, source: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
        return physical_lines(source, self._settings.max_body_bytes)

    def _failed_before(self, batch: Batch) -> set[str] | None:
        """The custom ids that a retry runs again; None for a batch that is no retry."""
        if batch.retry_of is None:
            return None
        try:
            error_file = self._batches.get(batch.retry_of).error_file_id
        except BatchNotFound as error:
            raise BatchRefused("batch_not_found", f"retry_of: {error}") from None
        if error_file is None:
            raise BatchRefused("nothing_failed", f"no line of {batch.retry_of} failed")
        with self._files.open(object_name(error_file)) as entries:
            ids = {json.loads(entry)["custom_id"] for entry in entries}
        return ids - {None}


class _Ready:
    """Valid lines, on the disk, and the order in which they are sent: near those with the same beginning."""

    def __init__(self, scratch: IO[bytes]) -> None:
        self._scratch = scratch
        self._ends = array("Q", [0])
        self._groups = array("Q")  # of each line, the first line with the same beginning
        self._first: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, line: Line) -> None:
        index, group, shared = len(self), len(self), prefix(line)
        if shared is not None:
            digest = hashlib.blake2b(shared.encode(), digest_size=16).digest()
            group = self._first.setdefault(digest, index)
        self._groups.append(group)
        self._ends.append(self._ends[-1] + self._scratch.write(dump_line(line)))

    def chunks(self) -> Iterator[list[bytes]]:
        """All lines but the first, which has a chunk of its own."""
        chunk: list[bytes] = []
        size = 0
        for index in sorted(range(1, len(self)), key=lambda i: (self._groups[i], i)):
            start, end = self._ends[index], self._ends[index + 1]
            self._scratch.seek(start)
            chunk.append(self._scratch.read(end - start))
            size += end - start
            if len(chunk) == CHUNK_LINES or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def _refusal(batch: Batch, line: Refused) -> Result:
    problem = line.problem
    error = {"code": problem.code, "message": str(problem), "param": problem.field, "line": line.number}
    entry = {
        "id": f"batch_req_{batch.id.removeprefix('batch_')}-{line.number}",
        "custom_id": line.custom_id,
        "response": None,
        "error": error,
    }
    return Result(line.number, failed=True, entry=entry)


def _shown(line: Refused) -> dict[str, Any]:
    problem = line.problem
    return {"code": problem.code, "line": line.number, "message": str(problem), "param": problem.field}
