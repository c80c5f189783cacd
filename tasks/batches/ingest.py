"""Reads a batch's input file in two passes.

The first rejects an invalid file before any line is sent. The second validates each line and writes the valid
ones to chunks in the order of sending.

The file of a batch that is made of a table is first converted to such lines, in a child process.

Memory per line: a digest of its custom id and its position, about 300 bytes whatever its length. An
interrupted run starts again from the beginning and writes the same lines to chunks of the same names, with
other seeds where they are random; lines that were sent are not sent again. Two runs at once, of one who leads
and one who did, do no harm: refused lines are in a segment of each run, and those of one run are recorded.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Generator, Iterator
from typing import IO, Any, BinaryIO

from common.json_text import compact
from tables.conversion.options import TableOptions
from tables.conversion.process import Conversion, ConversionFailed, lines_spec
from tables.conversion.seats import Seats
from tasks.base.errors import BatchNotFound, BatchRefused, FilesLimit, FileStoreUnavailable
from tasks.base.settings import Settings
from tasks.batches.line_decoder import InvalidLine, LineDecoder, digest, kind_of
from tasks.batches.segments import new_invalid_name, segment_name, write_chunk
from tasks.batches.store import BatchStore
from tasks.batches.time_slicing import Steps
from tasks.files.base import FileStore, NewObject, translated
from tasks.files.records import object_name
from tasks.records.batch import STOPPED_CODES, Batch, Ending, line_job_id
from tasks.records.packed_line import PARTS, Line
from tasks.schema.batch_output import without_answer
from tasks.schema.job_request import Problem
from tasks.schema.json_lines import physical_lines

CHUNK_LINES = 1024
CHUNK_BYTES = 2 * 1024 * 1024  # held in memory for each batch being read
SHOWN_ERRORS = 100  # errors in a batch's record; the error file has all of them
MESSAGE_CHARS = 600  # of an error message: a custom id and the sentence around it
REPORT_S = 0.25  # between two reports of progress, which also read whether the batch was ended
MAGIC_BYTES = 8
POLL_S = 0.02  # between two looks at a conversion


class Ingest:
    """One run over one batch's file."""

    def __init__(self, files: FileStore, batches: BatchStore, settings: Settings, token: str) -> None:
        """token: the leader's token, which the batch store checks."""
        self._files, self._batches, self._settings, self._token = files, batches, settings, token
        self._seats = Seats()

    def run(self, batch_id: str) -> Steps:
        """Read the file in short steps. Raises BatchRefused for a file that is invalid as a whole, LeadLost,
        and the errors of the stores.

        A batch that was already read is left unchanged. If the batch is cancelled or expires meanwhile,
        reading stops: only the lines that were sent or rejected by then have results.
        """
        batch = self._batches.get(batch_id)
        if batch.validated or batch.ended:
            return
        report = _Report(self._batches, self._token, batch)
        with self._files.local_copy(object_name(batch.input_file_id)) as (source, copying):
            for _ in copying:
                yield
                if report.check_ending():
                    break
            only = yield from self._failed_before(batch, report)
            if batch.table is None:
                yield from self._refuse_useless_file(source, report)
                yield from self._read(batch, source, only, report)
                return
            with translated("temporary files"), tempfile.TemporaryFile() as lines:
                yield from self._convert(batch, batch.table, source, lines, report)
                yield from self._read(batch, lines, only, report)

    def _convert(
        self, batch: Batch, table: TableOptions, source: BinaryIO, lines: BinaryIO, report: _Report
    ) -> Steps:
        """Write the lines of a table, unless the batch is ended meanwhile. Raises BatchRefused."""
        settings = self._settings
        specification = lines_spec(
            table,
            batch.endpoint,
            rows=settings.max_batch_lines,
            line_bytes=settings.max_body_bytes,
            all_bytes=settings.max_file_bytes,
        )
        seat = self._seats.enter(batch.owner)
        try:
            with contextlib.closing(Conversion(seat, specification, source, lines=lines)) as conversion:
                while not conversion.has_ended(POLL_S):
                    yield
                    if report.check_ending():
                        return
            self._batches.count_copy(self._token, batch.id, lines.seek(0, os.SEEK_END))
        except ConversionFailed as error:
            if error.storage:
                raise FileStoreUnavailable(str(error)) from None
            raise BatchRefused(error.code, str(error)) from None
        except FilesLimit as error:
            raise BatchRefused("file_storage_limit", str(error)) from None
        finally:
            seat.leave()
        lines.seek(0)

    def _refuse_useless_file(self, source: BinaryIO, report: _Report) -> Steps:
        """Raises BatchRefused before any line is sent."""
        source.seek(0)
        kind = kind_of(source.read(MAGIC_BYTES))
        if kind is not None:
            raise BatchRefused("invalid_file", f"the file is {kind}, not JSON lines")
        source.seek(0)
        most, empty = self._settings.max_batch_lines, True
        for number, raw in self._lines(source):
            if number > most:
                message = f"the file holds more than {most:,} lines, blank ones counted too"
                raise BatchRefused("too_many_tasks", message)
            empty = empty and raw == b""
            yield
            if report.check_ending():
                break
        else:
            if empty:
                raise BatchRefused("empty_file", "the file holds no line")
        source.seek(0)

    def _read(self, batch: Batch, source: BinaryIO, only: set[bytes] | None, report: _Report) -> Steps:
        settings = self._settings
        decoder = LineDecoder(
            batch.endpoint,
            settings.max_body_bytes,
            settings.default_max_tokens,
            batch.default_model,
            batch.choose_from,
            batch.max_tokens,
            batch.every_model,
            settings.model_aliases,
        )
        errors: list[dict[str, Any]] = []
        codes: Counter[str] = Counter()
        invalid: NewObject | None = None
        name = new_invalid_name()
        lines, complete = 0, not report.check_ending()
        with (
            translated("temporary files"),
            tempfile.TemporaryFile() as scratch,
            contextlib.ExitStack() as written,
        ):
            ready = _Ready(scratch)
            for number, raw in self._lines(source) if complete else ():
                if report.check_ending(len(ready), lines):
                    complete = False
                    break
                yield
                if raw == b"":
                    continue
                line = _verdict(decoder, batch, number, raw)
                if only is not None and (line.custom_id is None or digest(line.custom_id) not in only):
                    continue
                lines += 1
                if isinstance(line, InvalidLine):
                    codes[line.problem.code] += 1
                    if invalid is None:
                        new = self._files.open_new(segment_name(batch.id, name))
                        invalid = written.enter_context(new)
                    invalid.write(_refusal(batch, line).encode())
                    if len(errors) < SHOWN_ERRORS:
                        errors.append(_to_error(line))
                elif not batch.dry_run:
                    packed = ready.add(line)
                    if len(ready) == 1:  # at once, for early feedback
                        write_chunk(self._files, batch.id, 0, [packed])
                        report.now(1, lines)
            chunks = sendable = min(1, len(ready))
            for chunk in ready.chunks():
                if report.check_ending(len(ready), lines):
                    complete = False
                    break
                write_chunk(self._files, batch.id, chunks, chunk)
                chunks, sendable = chunks + 1, sendable + len(chunk)
                yield
        if not complete:
            lines = codes.total() + sendable
            errors.insert(0, _unread(report.how))
        self._batches.validated(
            self._token,
            batch.id,
            chunks=chunks,
            lines=lines,
            invalid=codes,
            segment=name if invalid is not None else None,
            errors=errors,
            model=decoder.model,
        )

    def _lines(self, source: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
        """The lines without surrounding white space, numbered from 1; None for one that is too long."""
        for number, raw in physical_lines(source, self._settings.max_body_bytes):
            yield number, raw if raw is None else raw.strip()

    def _failed_before(self, batch: Batch, report: _Report) -> Generator[None, None, set[bytes] | None]:
        """Digests of the custom ids that a retry runs again; None for a batch that is no retry."""
        if batch.retry_of is None:
            return None
        try:
            error_file = self._batches.get(batch.retry_of).error_file_id
        except BatchNotFound as error:
            raise BatchRefused("batch_not_found", f"retry_of: {error}") from None
        if error_file is None:
            raise BatchRefused("nothing_failed", f"no line of {batch.retry_of} failed")
        ids: set[bytes] = set()
        with self._files.open(object_name(error_file)) as entries:
            for entry in entries:
                custom_id = json.loads(entry)["custom_id"]
                if custom_id is not None:
                    ids.add(digest(custom_id))
                yield
                if report.check_ending():
                    break
        return ids


class _Report:
    """Writes the progress to Redis, and reads whether the batch was cancelled or has expired.

    how: which of both, or Ending.NONE.
    """

    def __init__(self, batches: BatchStore, token: str, batch: Batch) -> None:
        self._batches, self._token, self._batch = batches, token, batch
        self.how = Ending.NONE
        self._chunks = 0  # that could be sent when it was last reported
        self._at = float("-inf")  # on the monotonic clock

    def check_ending(self, ready: int = 0, lines: int = 0) -> bool:
        """Report if REPORT_S have passed; return whether reading should stop.

        ready: valid lines of the `lines` read so far. A line that another run on this file has sent, before
        this one or beside it, is read in any case.
        """
        if not self.how and time.monotonic() - self._at >= REPORT_S:
            self.now(min(1, ready), lines)
        return bool(self.how) and ready >= self._chunks

    def now(self, chunks: int, lines: int) -> None:
        """Raises LeadLost."""
        self._at = time.monotonic()
        self.how, self._chunks = self._batches.chunks_ready(self._token, self._batch.id, chunks, lines)


class _Ready:
    """Valid lines on disk, and their order of sending, which groups lines with a common prompt prefix."""

    def __init__(self, scratch: IO[bytes]) -> None:
        self._scratch = scratch
        self._ends = array("Q", [0])
        self._groups = array("Q")  # for each line, the index of the first line with the same prefix
        self._first: dict[bytes, int] = {}
        self._models: set[str] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, line: Line) -> bytes:
        """Returns the line packed, as it will be in a chunk."""
        index = group = len(self)
        if line.prefix is not None:
            group = self._first.setdefault(digest(line.prefix), index)
        packed = line.packed(group)
        self._models.add(line.model)
        self._groups.append(group)
        self._ends.append(self._ends[-1] + self._scratch.write(packed))
        return packed

    def chunks(self) -> Iterator[list[bytes]]:
        """The chunks of all lines after the first, which has its own chunk.

        In a chunk the lines of each model stand together: what is sent at once is of one model.
        """
        for chunk in self._in_order():
            if len(self._models) > 1:
                chunk.sort(key=_model)
            yield chunk

    def _in_order(self) -> Iterator[list[bytes]]:
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


def _model(packed: bytes) -> bytes:
    return packed.split(b"\t", PARTS - 2)[3]


def _verdict(decoder: LineDecoder, batch: Batch, number: int, raw: bytes | None) -> Line | InvalidLine:
    """Of a table, a line may be [custom id, code, message] in the place of a request."""
    if batch.table is None or raw is None or not raw.startswith(b"["):
        return decoder.decode(number, raw)
    custom_id, code, message = json.loads(raw)
    return decoder.refused(number, custom_id, Problem(message, code=code))


def _refusal(batch: Batch, line: InvalidLine) -> str:
    job_id = line_job_id(batch.id, line.number)
    return without_answer(job_id, line.number, compact(line.custom_id), _to_error(line))


def _to_error(line: InvalidLine) -> dict[str, Any]:
    problem = line.problem
    field = None if problem.field is None else _clipped(problem.field)
    return {"code": problem.code, "line": line.number, "message": _clipped(str(problem)), "param": field}


def _clipped(text: str) -> str:
    """Cut a text that repeats names from a line, which may be as long as the line."""
    return text if len(text) <= MESSAGE_CHARS else text[:MESSAGE_CHARS] + "..."


def _unread(how: Ending) -> dict[str, Any]:
    message = "the input file was not read to the end: lines without a result or an error were never sent"
    return {"code": STOPPED_CODES[how], "line": None, "message": message, "param": None}
