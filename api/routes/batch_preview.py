"""The first rows of an uploaded table, and the requests that a batch would make of them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api.http.errors import BadRequest, NoOutputTable
from api.http.headers import JSON_TYPE
from api.requests.ids import checked, schema
from api.requests.parsing import json_body, owner_of, seen_by, unless_closed
from api.requests.schemas import ErrorBody
from api.requests.threads import run_in_threadpool
from api.routes.batch_results import Making
from api.service.dependencies import Gateway, GatewayDep
from tables.conversion.options import TableOptions, Wanted
from tables.conversion.process import PREVIEW, Conversion, preview_spec
from tables.conversion.seats import Seat
from tasks.base.errors import FileNotFound
from tasks.files.records import FileRecord
from tasks.records.ids import FILE
from tasks.schema.table_request import TableFields, check_kind, checked_options

MAX_ROWS = 100
_ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": ErrorBody} for code in (400, 413, 415, 500, 503)}

router = APIRouter(tags=["batches"], responses=_ERRORS)


class PreviewRequest(TableFields):
    """The fields of a batch that is made of a table, and how much to show of it."""

    input_file_id: Annotated[str, schema(FILE)]
    endpoint: Literal["/v1/chat/completions", "/v1/jobs"] = "/v1/chat/completions"
    rows: int = Field(3, ge=1, le=MAX_ROWS, description="Most rows that are shown.")
    count: bool = Field(
        False,
        description="Read all rows and count them, which also finds those that cannot be read. Where that "
        "takes more than 1.5 s of processor time, `row_count` is null.",
    )


class PreviewedRequest(BaseModel):
    """A row's request. Either body or error is null."""

    custom_id: str
    body: dict[str, Any] | None
    error: dict[str, str] | None


class Preview(BaseModel):
    """Values of rows are numbers, truth values, null or text, which is cut after 500 characters."""

    object: Literal["batch.preview"]
    description: str
    columns: list[str]
    rows: list[list[Any]]
    row_count: int | None
    requests: list[PreviewedRequest]


_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/PreviewRequest"}}},
    }
}


@router.post("/v1/batches/preview", responses={200: {"model": Preview}}, openapi_extra=_BODY)
async def preview_batch(request: Request, gateway: GatewayDep) -> Response:
    """The first rows of an uploaded table; with a template, also their requests as a batch would send them.

    Creates nothing. `description` says how the file was read.
    """
    body = await json_body(request, PreviewRequest)
    try:
        file = await run_in_threadpool(_file, gateway, body.input_file_id, seen_by(request))
    except FileNotFound as error:
        raise BadRequest(f"input_file_id: {error}", code="file_not_found", param="input_file_id") from None
    owner = owner_of(request)
    making = _PreviewMaking(gateway, owner, file, _options(body, file), body)
    gateway.table_downloads.begin(owner)
    try:
        content = await unless_closed(request, making.unless_abandoned())
    except NoOutputTable as error:  # the file is no table, or the template does not fit it
        raise BadRequest(str(error), code="invalid_table", param="input_file_id") from None
    finally:
        gateway.table_downloads.end(owner)
    with content:
        return Response(content.read(), media_type=JSON_TYPE)


def _file(gateway: Gateway, file_id: str, seen: str | None) -> FileRecord:
    return gateway.files.records.get(checked(FILE, FileNotFound)(file_id), seen)


def _options(body: PreviewRequest, file: FileRecord) -> TableOptions:
    options = body.options()
    if options is not None:
        return checked_options(options, body.endpoint, file.filename)
    check_kind(file.filename)
    return TableOptions(file.filename, "")


class _PreviewMaking(Making):
    def __init__(
        self, gateway: Gateway, owner: str, file: FileRecord, options: TableOptions, body: PreviewRequest
    ) -> None:
        super().__init__(gateway, owner)
        self._file, self._options, self._body = file, options, body

    async def made(self, seat: Seat) -> BinaryIO:
        return await self.converted(seat, self._conversion(seat), PREVIEW)

    def _conversion(self, seat: Seat) -> Generator[Conversion | None, None, None]:
        """In short steps, as batch_results has them."""
        gateway, body = self._gateway, self._body
        wanted = Wanted(body.rows, body.count)
        settings = gateway.settings
        specification = preview_spec(
            self._options, body.endpoint, wanted, settings.max_batch_lines, settings.max_body_bytes
        )
        with contextlib.ExitStack() as exits:
            table, copying = exits.enter_context(gateway.files.objects.local_copy(self._file.object_name))
            for _ in copying:
                yield None
            yield exits.enter_context(contextlib.closing(Conversion(seat, specification, table)))
