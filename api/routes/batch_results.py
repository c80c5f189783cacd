"""The results of batches, also while they run: lines in OpenAI's format, or a table with the answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, BinaryIO

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from api.http.errors import BadRequest, NoOutputTable
from api.requests.caller import caller_of
from api.requests.ids import BatchId
from api.requests.open_requests import OpenKey
from api.requests.parsing import boolean, member, owner_of, seen_by, unless_closed
from api.requests.schemas import ErrorBody, query
from api.requests.threads import run_in_threadpool
from api.service.dependencies import Gateway, GatewayDep
from api.service.file_response import READ_BYTES, ContentResponse, Download, open_content
from tables.conversion.process import Conversion, ConversionFailed, output_spec
from tables.conversion.seats import Seat
from tasks.base.errors import FileStoreUnavailable, ObjectMissing
from tasks.batches.segments import merged
from tasks.files.base import translated
from tasks.records.batch import Batch, BatchStatus

JSON_LINES = "application/jsonl"
POLL_S = 0.02  # between two looks at a conversion, and for a seat
_LINES: dict[int | str, dict[str, Any]] = {200: {"content": {JSON_LINES: {}}}}
_ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": ErrorBody} for code in (400, 404, 409, 500, 503)}


class Format(StrEnum):
    """Of a table."""

    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    XLSX = "xlsx"
    JSONL = "jsonl"


MEDIA_TYPES = {
    Format.CSV: "text/csv; charset=utf-8",
    Format.TSV: "text/tab-separated-values; charset=utf-8",
    Format.PARQUET: "application/vnd.apache.parquet",
    Format.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    Format.JSONL: JSON_LINES,
}
CUT_VALUES = "X-Cut-Values"  # a header of tables
_TABLES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {media.partition(";")[0]: {} for media in MEDIA_TYPES.values()},
        "headers": {
            CUT_VALUES: {
                "description": "How many values were cut: a cell of xlsx holds 32,767 characters.",
                "schema": {"type": "integer"},
            }
        },
    },
    507: {"model": ErrorBody},
}
PARAMETERS = [
    query(
        "format",
        {"type": "string", "enum": [*Format]},
        "Of a batch that was made of a table: the rows that have a result, with the columns of the answers.",
    ),
    query(
        "usage",
        {"type": "boolean", "default": False},
        "With a format: two more columns, the numbers of tokens of the prompt and of the answer.",
    ),
    query(
        "safe_csv",
        {"type": "boolean", "default": False},
        "With csv and tsv: a quote before cells that a spreadsheet program would run as a formula.",
    ),
]

router = APIRouter(tags=["batches"], responses=_ERRORS)


@router.get(
    "/v1/batches/{batch_id}/output",
    response_class=Response,
    responses=_TABLES,
    openapi_extra={"parameters": PARAMETERS},
)
async def partial_output(batch_id: BatchId, request: Request, gateway: GatewayDep) -> Response:
    """The successful results so far, in input order; also while the batch runs."""
    wanted = _wanted_table(request.query_params)
    batch = await run_in_threadpool(gateway.batches.get, batch_id, seen_by(request))
    if wanted is not None:
        return await _table(batch, wanted, request, gateway)
    return await _results(batch, gateway, caller_of(request).key, failed=False)


@router.get("/v1/batches/{batch_id}/errors", response_class=Response, responses=_LINES)
async def partial_errors(batch_id: BatchId, request: Request, gateway: GatewayDep) -> Response:
    """The lines that have failed so far, in input order."""
    batch = await run_in_threadpool(gateway.batches.get, batch_id, seen_by(request))
    return await _results(batch, gateway, caller_of(request).key, failed=True)


async def _results(batch: Batch, gateway: Gateway, key: OpenKey, *, failed: bool) -> Response:
    """batch: may be outdated. Reads the first lines before responding, so that it can still fail."""
    if not batch.ended:
        try:
            if so_far := await _from_parts(batch, gateway, key, failed=failed):
                return so_far
        except ObjectMissing:
            if not (await run_in_threadpool(gateway.batches.get, batch.id)).ended:
                raise
        batch = await run_in_threadpool(gateway.batches.get, batch.id)  # parts are deleted soon after the end
    if batch.status is BatchStatus.FAILED and (kept := await _from_parts(batch, gateway, key, failed=failed)):
        return kept
    file_id = batch.error_file_id if failed else batch.output_file_id
    if file_id is None:
        return Response(media_type=JSON_LINES)
    file = await run_in_threadpool(gateway.files.records.get, file_id)
    return ContentResponse(gateway, await open_content(gateway, file), file, key, media_type=JSON_LINES)


async def _from_parts(batch: Batch, gateway: Gateway, key: OpenKey, *, failed: bool) -> Response | None:
    """A response from the stored parts, or None if they have no such line."""
    blocks = _blocks(gateway, batch, {failed})
    first = await gateway.in_file_thread(partial(next, blocks, b""))
    return Download(_all(gateway, first, blocks), key, media_type=JSON_LINES) if first else None


def _blocks(gateway: Gateway, batch: Batch, failed: set[bool]) -> Iterator[bytes]:
    """The result lines so far, in blocks; of a failed batch those that still exist."""
    block = bytearray()
    for entry in merged(gateway.files.objects, batch.id, batch.segments, missing_ok=batch.ended):
        if entry.failed in failed:
            block += entry.line
        if len(block) >= READ_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


async def _all(gateway: Gateway, block: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
    while block:
        yield block
        block = await gateway.in_file_thread(partial(next, rest, b""))


# Tables


@dataclass(frozen=True, slots=True)
class _Wanted:
    kind: Format
    usage: bool
    safe_csv: bool

    @property
    def name(self) -> str:
        return f"output.{self.kind}"


def _wanted_table(parameters: Mapping[str, str]) -> _Wanted | None:
    """None without a format. Raises BadRequest."""
    chosen = parameters.get("format")
    if chosen is None:
        for name in ("usage", "safe_csv"):
            if name in parameters:
                raise BadRequest(f"{name}: goes with a format", param=name)
        return None
    wanted = _Wanted(
        member(Format, "format", chosen), boolean("usage", parameters), boolean("safe_csv", parameters)
    )
    if wanted.safe_csv and wanted.kind not in (Format.CSV, Format.TSV):
        raise BadRequest("safe_csv: is for csv and tsv; other formats do not need it", param="safe_csv")
    return wanted


async def _table(batch: Batch, wanted: _Wanted, request: Request, gateway: Gateway) -> Response:
    """The rows that have a result."""
    if batch.table is None:
        raise BadRequest("format: is for batches that were made of a table, with a template", param="format")
    if batch.status is BatchStatus.FAILED and not batch.validated:
        raise NoOutputTable(f"{batch.id} failed: {batch.errors[0]['message'] if batch.errors else ''}")
    owner = owner_of(request)
    gateway.table_downloads.begin(owner)
    making = _TableMaking(gateway, owner, batch, wanted)
    try:
        file = await unless_closed(request, making.unless_abandoned())
    except BaseException:
        gateway.table_downloads.end(owner)
        raise
    return TableResponse(gateway, file, f"{batch.id}.{wanted.kind}", wanted.kind, making.cut, request)


class Making:
    """Makes one file, in a task of its own: whoever waits for it may leave between two steps.

    cut: values that the format could not hold whole, at the end.
    """

    def __init__(self, gateway: Gateway, owner: str) -> None:
        self._gateway, self._owner = gateway, owner
        self._abandoned = False
        self.cut = 0

    async def unless_abandoned(self) -> BinaryIO:
        """The file, which the caller closes."""
        making = asyncio.ensure_future(self._make())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._abandoned = True
            making.add_done_callback(_closed)
            raise

    async def _make(self) -> BinaryIO:
        seat = self._gateway.table_downloads.seats.enter(self._owner)
        try:
            return await self.made(seat)
        finally:
            seat.leave()

    async def made(self, seat: Seat) -> BinaryIO:
        """The file, by converted()."""
        raise NotImplementedError

    async def converted(
        self, seat: Seat, steps: Generator[Conversion | None, None, None], name: str
    ) -> BinaryIO:
        """The file of this name in the folder of a conversion. steps: None for a step before it.

        Raises NoOutputTable and FileStoreUnavailable.
        """
        gateway, conversion = self._gateway, None
        try:
            while conversion is None:
                while not seat.held():
                    await self._pause()
                conversion = await gateway.in_file_thread(partial(next, steps))
                self._check()
            while not await gateway.in_file_thread(conversion.has_ended):
                await self._pause()
            self.cut = conversion.cut
            return await gateway.in_file_thread(partial((conversion.folder / name).open, "rb"))
        except ConversionFailed as error:
            if error.storage:
                raise FileStoreUnavailable(str(error)) from None
            raise NoOutputTable(str(error)) from None
        finally:
            await gateway.in_file_thread(steps.close)

    async def _pause(self) -> None:
        await asyncio.sleep(POLL_S)
        self._check()

    def _check(self) -> None:
        if self._abandoned:
            raise asyncio.CancelledError


class _TableMaking(Making):
    """Makes the output table of a batch."""

    def __init__(self, gateway: Gateway, owner: str, batch: Batch, wanted: _Wanted) -> None:
        super().__init__(gateway, owner)
        self._batch, self._wanted = batch, wanted

    async def made(self, seat: Seat) -> BinaryIO:
        try:
            return await self._converted(seat)
        except ObjectMissing:  # its parts are deleted soon after its end
            if self._batch.ended:
                raise
            self._batch = await run_in_threadpool(self._gateway.batches.get, self._batch.id)
            return await self._converted(seat)

    async def _converted(self, seat: Seat) -> BinaryIO:
        steps = _conversion(seat, self._gateway, self._batch, self._wanted)
        return await self.converted(seat, steps, self._wanted.name)


def _conversion(
    seat: Seat, gateway: Gateway, batch: Batch, wanted: _Wanted
) -> Generator[Conversion | None, None, None]:
    """In short steps: None while files are copied, then the conversion, which ends with this generator."""
    records = gateway.files.records
    ids = [batch.input_file_id, *(id for id in (batch.output_file_id, batch.error_file_id) if id is not None)]
    assert batch.table is not None
    with contextlib.ExitStack() as exits:
        files: list[BinaryIO] = []
        for file_id in ids:
            name = records.get(file_id).object_name
            file, copying = exits.enter_context(gateway.files.objects.local_copy(name))
            for _ in copying:
                yield None
            files.append(file)
        if len(ids) == 1:  # not ended, or without its files
            exits.enter_context(translated("temporary files"))
            parts = exits.enter_context(tempfile.TemporaryFile())
            for block in _blocks(gateway, batch, {True, False}):
                parts.write(block)
                yield None
            parts.flush()
            files.append(parts)
        specification = output_spec(batch.table, wanted.name, usage=wanted.usage, safe_csv=wanted.safe_csv)
        table, *results = files
        yield exits.enter_context(contextlib.closing(Conversion(seat, specification, table, results=results)))


def _closed(making: asyncio.Future[BinaryIO]) -> None:
    """Close a table that nobody waits for."""
    if not making.cancelled() and making.exception() is None:
        making.result().close()


class TableResponse(Download):
    """Streams a table, and closes it at the end."""

    def __init__(
        self, gateway: Gateway, file: BinaryIO, name: str, kind: Format, cut: int, request: Request
    ) -> None:
        self._gateway, self._file, self._owner = gateway, file, owner_of(request)
        headers = {
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
        }
        if cut:
            headers[CUT_VALUES] = str(cut)
        super().__init__(self._chunks(), caller_of(request).key, 200, headers, MEDIA_TYPES[kind])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()
            self._gateway.table_downloads.end(self._owner)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while chunk := await self._gateway.in_file_thread(partial(self._file.read, READ_BYTES)):
            yield chunk
