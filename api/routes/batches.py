"""The batch endpoints, in OpenAI's format, with extensions such as retry and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.http.errors import BadRequest, BatchNotEnded
from api.requests.caller import caller_of
from api.requests.ids import BatchId, checked, schema
from api.requests.parsing import (
    MAX_EXPIRY_S,
    MIN_EXPIRY_S,
    idempotency_key,
    json_body,
    optional_json_body,
    owner_of,
    page_query,
    seen_by,
    unknown_after,
    wait_s,
)
from api.requests.schemas import IDEMPOTENCY_KEY, PAGE_PARAMETERS, PREFER, ErrorBody, page
from api.requests.threads import run_in_threadpool
from api.service.dependencies import WORKERS_AGE_S, Gateway, GatewayDep
from api.service.model_routing import model_of_unnamed
from api.service.submission import check_target, hash_of
from tasks.base.errors import BatchNotFound, FileNotFound
from tasks.files.records import Purpose
from tasks.records.batch import MAX_PRIORITY, NOTHING_RUNS, Batch, Ending, NewBatch
from tasks.records.ids import FILE
from tasks.records.window import LiveWindow
from tasks.schema.batch_line_schema import line_schema as make_line_schema
from tasks.schema.job_request import (
    MAX_METADATA,
    MAX_MODEL,
    MAX_TOKENS,
    Deadline,
    MetaKey,
    MetaValue,
    check_deadline,
)
from tasks.schema.messages import Strict
from tasks.schema.table_request import TableFields, check_is_no_table, checked_options
from tasks.schema.webhook_request import BatchWebhook
from tasks.store.windows import WindowStore

MOST_WINDOWS = 100  # shown of a batch, as on any page
SCHEMA_JSON = "application/schema+json"
_ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody} for code in (400, 404, 409, 413, 415, 503)
}

router = APIRouter(tags=["batches"], responses=_ERRORS)


class ExpiresAfter(Strict):
    """When the output files are deleted: seconds after their creation."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)


class BatchRequest(TableFields):
    """A batch to run. The fields from priority on, and those of tables, extend OpenAI's."""

    input_file_id: Annotated[str, schema(FILE)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/jobs"]
    completion_window: Literal["24h"] = "24h"
    metadata: dict[MetaKey, MetaValue] | None = Field(None, max_length=MAX_METADATA)
    output_expires_after: ExpiresAfter | None = None
    priority: int = Field(
        0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Of your batches, those of higher priority run first, then those of earlier deadline.",
    )
    deadline: Deadline | None = Field(
        None, description="Unix seconds; lines that have not run by then expire. Default: 24 hours from now."
    )
    model: Annotated[str, Field(min_length=1, max_length=MAX_MODEL)] | None = Field(
        None, description="Model of all lines, in place of theirs."
    )
    dry_run: bool = Field(False, description="Validate the file and send nothing.")
    webhook: BatchWebhook | None = None


class RetryRequest(Strict):
    """What a retry changes in the lines that it runs again. The body may be absent."""

    max_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Most tokens of each answer, in place of the line's own."
    )


_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/BatchRequest"}}},
    },
    "parameters": [IDEMPOTENCY_KEY],
}


@router.post("/v1/batches", openapi_extra=_BODY)
async def create_batch(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Run a file that was uploaded with purpose `batch`."""
    key = idempotency_key(request)
    body = await json_body(request, BatchRequest)
    new = NewBatch(
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        owner=owner_of(request),
        deadline=body.deadline,
        priority=body.priority,
        metadata=body.metadata or {},
        output_expires_s=body.output_expires_after.seconds if body.output_expires_after else None,
        dry_run=body.dry_run,
        every_model=body.model or "",
        webhook=None if body.webhook is None else body.webhook.chosen(),
        table=body.options(),
        idempotency_key=key,
        body_hash=hash_of(body.model_dump(mode="json", exclude_unset=True)),
    )
    return JSONResponse((await run_in_threadpool(_created, gateway, new, seen_by(request))).to_json())


@router.get("/v1/batches", openapi_extra={"parameters": PAGE_PARAMETERS})
async def list_batches(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Batches, newest first; ?limit=1..100 and ?after=ID."""
    limit, after, _ = page_query(request)
    seen = seen_by(request)

    def found() -> tuple[list[dict[str, Any]], bool]:
        batches, more = gateway.batches.page(limit, after, seen)
        return _shown(gateway, batches), more

    try:
        shown, more = await run_in_threadpool(found)
    except BatchNotFound as error:
        raise unknown_after(error) from None
    return page(shown, more)


@router.get("/v1/batches/{batch_id}", openapi_extra={"parameters": [PREFER]})
async def get_batch(batch_id: BatchId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """One batch, with its current counts; with `Prefer: wait=N` the response is sent when it has ended, or
    after N seconds.

    `running` has the lines that are being answered, and the tokens that they have got so far, which `usage`
    does not count yet."""
    seen = seen_by(request)

    def has_ended() -> bool:
        return gateway.batches.get(batch_id, seen).ended

    def found() -> list[dict[str, Any]]:
        return _shown(gateway, [gateway.batches.get(batch_id, seen)])

    if wait := wait_s(request):
        ended = gateway.job_events.wait_for_batch(batch_id, has_ended, wait)
        await caller_of(request).key.unless_revoked(ended)

    [shown] = await run_in_threadpool(found)
    return JSONResponse(shown)


@router.get("/v1/batches/{batch_id}/windows")
async def list_windows(batch_id: BatchId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """The windows in which lines of a batch wait for a worker (`queued`) or run, in the order of their lines.

    `lines` says which: `batch_... lines 2,049 to 2,112`. Lines that are in no window have ended, or were not
    sent yet. Of more than 100 windows the first 100 are shown.
    """

    def found() -> tuple[list[LiveWindow], bool]:
        gateway.batches.get(batch_id, seen_by(request))
        return WindowStore(gateway.store.db).of_batch(batch_id, MOST_WINDOWS)

    windows, more = await run_in_threadpool(found)
    return page([window.to_json() for window in windows], more)


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(batch_id: BatchId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """Cancel a batch: results so far are kept, running lines are stopped, and the other lines get the error
    code `batch_cancelled`."""
    end = partial(gateway.batches.stop, batch_id, Ending.CANCELLED, seen_by(request))
    return JSONResponse((await run_in_threadpool(end)).to_json())


_RETRY = {
    "requestBody": {
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RetryRequest"}}},
    },
    "parameters": [IDEMPOTENCY_KEY],
}


@router.post("/v1/batches/{batch_id}/retry", openapi_extra=_RETRY)
async def retry_batch(batch_id: BatchId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """Create a new batch of the lines that failed in this one, with the same settings.

    The lines are run as they are, with the `max_tokens` of the body if it has one, or of the retry that this
    batch was: an answer that was cut off (`incomplete`) needs a higher one."""
    key = idempotency_key(request)
    body = await optional_json_body(request, RetryRequest)
    body_hash = hash_of([batch_id, body.max_tokens])
    earlier = await run_in_threadpool(gateway.batches.earlier, key, body_hash)
    if earlier is not None:
        return JSONResponse(earlier.to_json())
    old = await run_in_threadpool(gateway.batches.get, batch_id, seen_by(request))
    if not old.ended:
        raise BatchNotEnded(f"{batch_id} is {old.status}: only a batch that has ended can be retried")
    if old.error_file_id is None:
        raise BadRequest(f"no line of {batch_id} failed", code="nothing_failed")
    new = NewBatch(
        endpoint=old.endpoint,
        input_file_id=old.input_file_id,
        owner=old.owner,
        priority=old.priority,
        metadata=old.metadata,
        output_expires_s=old.output_expires_s,
        retry_of=batch_id,
        webhook=old.webhook,
        max_tokens=body.max_tokens or old.max_tokens,
        every_model=old.every_model,
        idempotency_key=key,
        body_hash=body_hash,
        default_model=old.default_model,
        choose_from=old.choose_from,
        table=old.table,
    )
    return JSONResponse((await run_in_threadpool(_created, gateway, new, seen_by(request))).to_json())


@router.delete("/v1/batches/{batch_id}")
async def delete_batch(batch_id: BatchId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """Delete the record of a batch that has ended; its files are kept."""
    if not await run_in_threadpool(gateway.batches.delete, batch_id, seen_by(request)):
        raise BatchNotEnded(f"{batch_id} has not ended yet: cancel it before deleting it")
    return JSONResponse({"id": batch_id, "object": "batch", "deleted": True})


@router.get(
    "/v1/schemas/batch_line.json",
    response_class=Response,
    responses={200: {"content": {SCHEMA_JSON: {"schema": {"type": "object"}}}}},
)
async def line_schema() -> JSONResponse:
    """The JSON Schema of a line of a batch file."""
    return JSONResponse(make_line_schema(), media_type=SCHEMA_JSON)


def _shown(gateway: Gateway, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    running = WindowStore(gateway.store.db).running([batch.id for batch in batches if not batch.ended])
    return [batch.to_json(running.get(batch.id, NOTHING_RUNS)) for batch in batches]


def _created(gateway: Gateway, new: NewBatch, seen: str | None) -> Batch:
    """Create a batch. seen: the owner whose files it may read; None is all owners."""
    try:
        return _create(gateway, new, seen)
    except FileNotFound as error:  # may also have been deleted in the meantime
        raise BadRequest(f"input_file_id: {error}", code="file_not_found", param="input_file_id") from None


def _create(gateway: Gateway, new: NewBatch, seen: str | None) -> Batch:
    """Raises FileNotFound."""
    earlier = gateway.batches.earlier(new.idempotency_key, new.body_hash)
    if earlier is not None:  # skip the checks, which might fail now
        return earlier
    check_deadline(new.deadline)
    if new.webhook is not None:
        check_target(gateway, new.webhook.url)
    record = gateway.files.records.get(checked(FILE, FileNotFound)(new.input_file_id), seen)
    if record.purpose is not Purpose.BATCH:
        message = f"input_file_id: the file's purpose is {record.purpose.value!r}, and must be 'batch'"
        raise BadRequest(message, param="input_file_id")
    if new.table is None:
        check_is_no_table(record.filename)
    elif new.retry_of is None:
        new = replace(new, table=checked_options(new.table, new.endpoint, record.filename))
    if new.retry_of is None:  # stored, so that reading the file again has the same outcome
        model, names = model_of_unnamed(gateway.settings.default_model, gateway.view(WORKERS_AGE_S))
        new = replace(new, default_model=model or "", choose_from=tuple(names))
    return gateway.batches.create(new)
