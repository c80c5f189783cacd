"""The end of a batch: its output and error files, in the order of the input, merged from the segments.

Stopped anywhere, it is done again: the files have the same ids, and appear whole or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from common.json_text import compact
from tasks.batches.segments import UNSENT, merging, read_chunk, segment_name
from tasks.batches.store import BatchStore
from tasks.batches.time_slicing import Steps
from tasks.files.manager import FileManager, Upload
from tasks.files.records import Purpose
from tasks.records.batch import STOPPED_CODES, Batch, BatchStatus, Ending, line_job_id
from tasks.records.packed_line import unpacked
from tasks.schema.batch_output import ended_early

OUTPUT, ERRORS = "output", "error"
MESSAGES = {
    Ending.CANCELLED: "the batch was cancelled before this line was sent",
    Ending.EXPIRED: "the batch expired before this line was sent",
}
STATUS = {
    Ending.CANCELLED: BatchStatus.CANCELLED,
    Ending.EXPIRED: BatchStatus.EXPIRED,
    Ending.NONE: BatchStatus.COMPLETED,
}


class Finalizer:
    """For batches of which nothing runs and everything is collected."""

    def __init__(self, keeper: FileManager, batches: BatchStore, token: str) -> None:
        self._keeper, self._batches, self._token = keeper, batches, token
        self._files = keeper.objects

    def run(self, batch_id: str) -> Steps:
        """In short steps. Raises LeadLost, ObjectMissing, and what the stores raise."""
        batch = self._batches.get(batch_id)
        if batch.ended:
            return
        unsent = yield from self._write_unsent(batch)
        self._batches.finalizing(self._token, batch.id)
        made = yield from self._write_files(batch, unsent=unsent)
        status = BatchStatus.FAILED if batch.wholly_invalid else STATUS[batch.ending]
        self._batches.finish(self._token, batch.id, status.value, **made)

    def _write_unsent(self, batch: Batch) -> Generator[None, None, bool]:
        """Write the segment of the lines that were never sent; False if there are none.

        Holds their numbers and custom ids in memory.
        """
        left: list[tuple[int, str]] = []
        for number in range(batch.chunk, batch.chunks):
            start = batch.offset if number == batch.chunk else 0
            lines = map(unpacked, read_chunk(self._files, batch.id, number)[start:])
            left += [(line.number, line.custom_id) for line in lines]
            yield
        if left:
            left.sort()
            with self._files.open_new(segment_name(batch.id, UNSENT)) as out:
                for line in left:
                    out.write(_never_sent(batch, *line).encode())
                    yield
        return bool(left)

    def _write_files(self, batch: Batch, *, unsent: bool) -> Generator[None, None, dict[str, str]]:
        """The ids of the files, by their field; none for a file that would be empty."""
        files: dict[str, Upload] = {}
        with contextlib.ExitStack() as open_files:
            for entry in merging(self._files, batch.id, batch.segments, unsent=unsent):
                yield
                if entry is None:
                    continue
                kind = ERRORS if entry.failed else OUTPUT
                if kind not in files:
                    file_id = f"file_{batch.id.removeprefix('batch_')}_{kind}"
                    files[kind] = open_files.enter_context(self._keeper.begin(file_id))
                files[kind].write(entry.line)
            for kind, file in files.items():
                name = f"{batch.id}_{kind}.jsonl"
                file.finish(name, Purpose.BATCH_OUTPUT, batch.output_expires_s, owner=batch.owner)
                yield
        return {f"{kind}_file_id": file.id for kind, file in files.items()}


def _never_sent(batch: Batch, number: int, custom_id: str) -> str:
    code, message = STOPPED_CODES[batch.ending], MESSAGES[batch.ending]
    return ended_early(line_job_id(batch.id, number), number, compact(custom_id), code, message)
