"""What a batch keeps in the file store while it runs: chunks of lines to send, and segments of results.

batches/ID/chunks/000000   valid lines in the order of sending, packed; the first holds the first line
batches/ID/parts/000000-HEX    results in the order of their lines, JSON each
batches/ID/parts/invalid-HEX   of lines that were refused, by the one who read the file
batches/ID/parts/unsent    of lines that were never sent

A segment with HEX counts if it is named in the batch's record; any other is what a late leader wrote. Chunks
are the same whoever writes them, and unsent lines are written again before each end.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tasks.files.base import FileStore, translated
from tasks.records.packed_line import Line
from tasks.schema.batch_output import number_of

UNSENT = "unsent"
INVALID = "invalid"  # as earlier releases named it, whoever wrote it
FAN_IN = 64  # segments read at once: each is an open file or connection
RESULT = re.compile(rb"\[(\d+),(true|false),(\{.*\})\]\n")  # as batch_output writes it


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the output file, or of the error file."""

    failed: bool
    line: bytes


def _folder(batch_id: str) -> str:
    return f"batches/{batch_id}"


def chunk_name(batch_id: str, number: int) -> str:
    return f"{_folder(batch_id)}/chunks/{number:06d}"


def segment_name(batch_id: str, segment: str) -> str:
    return f"{_folder(batch_id)}/parts/{segment}"


def new_segment_name(number: int) -> str:
    """A unique name, so that a recorded segment can never be overwritten."""
    return f"{number:06d}-{uuid.uuid4().hex}"


def new_invalid_name() -> str:
    """As new_segment_name(), of refused lines."""
    return f"{INVALID}-{uuid.uuid4().hex}"


def write_chunk(files: FileStore, batch_id: str, number: int, lines: Iterable[bytes]) -> None:
    """lines: packed. Raises FileStoreUnavailable."""
    with files.open_new(chunk_name(batch_id, number)) as chunk:
        for line in lines:
            chunk.write(line)


def read_chunk(files: FileStore, batch_id: str, number: int) -> list[bytes]:
    """All lines of a chunk, packed."""
    with files.open(chunk_name(batch_id, number)) as chunk:
        return [_packed(*json.loads(line)) if line.startswith(b"[") else line for line in chunk]


def _packed(
    number: int, custom_id: str, model: str, request: str, _preview: str, max_tokens: int | None = None
) -> bytes:
    """A line as earlier releases wrote it, some of them without max_tokens."""
    if max_tokens is None:
        max_tokens = json.loads(request)["max_tokens"]
    return Line(number, custom_id, model, request, max_tokens).packed(group=number)


def write_segment(files: FileStore, batch_id: str, segment: str, results: Iterable[str]) -> None:
    """In the order of their lines, whatever order they come in. results: as of tasks/schema/batch_output.py.

    Raises FileStoreUnavailable.
    """
    with files.open_new(segment_name(batch_id, segment)) as out:
        for result in sorted(results, key=number_of):
            out.write(result.encode())


def merged(
    files: FileStore, batch_id: str, segments: Iterable[str], *, missing_ok: bool = False
) -> Iterator[Entry]:
    """The entries of all lines so far, in their order, in bounded memory. segments: the recorded ones.

    Raises ObjectMissing unless missing_ok.
    """
    for entry in merging(files, batch_id, segments, missing_ok=missing_ok):
        if entry is not None:
            yield entry


def merging(
    files: FileStore,
    batch_id: str,
    segments: Iterable[str],
    *,
    unsent: bool = True,
    missing_ok: bool = False,
) -> Iterator[Entry | None]:
    """As merged(), in short steps: None after one that gave no entry yet.

    unsent False: there are none, and the segment of them, if any, is of an end that Redis has forgotten.
    """
    present = {name.rpartition("/")[2] for name in files.list(f"{_folder(batch_id)}/parts")}
    recorded = list(segments)
    alone = [] if any(name.startswith(f"{INVALID}-") for name in recorded) else [INVALID]
    alone += [UNSENT] if unsent else []
    names = [segment_name(batch_id, name) for name in alone if name in present]
    names += [segment_name(batch_id, name) for name in recorded if name in present or not missing_ok]
    with (
        translated("temporary files"),
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as opened,
    ):
        streams: list[IO[bytes]] = []
        for start in range(0, len(names), FAN_IN):
            group: list[IO[bytes]] = []
            for name in names[start : start + FAN_IN]:
                group.append(opened.enter_context(files.open(name)))
            if len(names) > FAN_IN:
                path = Path(folder, str(start))
                for _ in _merge_into(path, group):
                    yield None
                group = [opened.enter_context(path.open("rb"))]
            streams += group
        for found in _merge(streams):
            yield Entry(found[2] == b"true", found[3] + b"\n")


def _merge(streams: Sequence[IO[bytes]]) -> Iterator[re.Match[bytes]]:
    """The lines of segments as RESULT takes them apart; entries stay as they were written."""
    return heapq.merge(*(map(_taken_apart, stream) for stream in streams), key=lambda found: int(found[1]))


def _taken_apart(line: bytes) -> re.Match[bytes]:
    if (found := RESULT.fullmatch(line)) is None:
        raise ValueError("a segment is damaged: one of its lines is no result")
    return found


def _merge_into(path: Path, streams: Sequence[IO[bytes]]) -> Iterator[None]:
    """Step by step; closes the streams in the end."""
    with path.open("wb") as out:
        for found in _merge(streams):
            out.write(found[0])
            yield
    for stream in streams:
        stream.close()


def objects_left(files: FileStore, batch_id: str) -> list[str]:
    """Names of what only a batch under way needs."""
    return files.list(_folder(batch_id))


def remove_all(files: FileStore, batch_id: str) -> Iterator[None]:
    """What only a batch under way needs, step by step."""
    for name in objects_left(files, batch_id):
        files.delete(name, missing_ok=True)
        yield
