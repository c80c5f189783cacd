"""Webhook deliveries, and the signing secrets. Each API key sees only its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from api.http.errors import BadRequest
from api.requests.ids import DeliveryId
from api.requests.parsing import member, owner_of, page_query, unknown_after
from api.requests.schemas import PAGE_PARAMETERS, ErrorBody, page, query
from api.requests.threads import run_in_threadpool
from api.service.dependencies import GatewayDep
from tasks.base.errors import DeliveryNotFound
from tasks.records.webhook import DeliveryStatus
from tasks.webhooks.store import Secrets

_ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": ErrorBody} for code in (400, 404, 409, 503)}

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], responses=_ERRORS)


_OF = "Only the deliveries of this job or batch, all on one page. Only one job_id or batch_id is allowed."
_LIST = {
    "parameters": [
        *PAGE_PARAMETERS,
        query("status", {"type": "string", "enum": list(DeliveryStatus)}),
        query("job_id", {"type": "string", "minLength": 1}, _OF),
        query("batch_id", {"type": "string", "minLength": 1}, _OF),
    ]
}


@router.get("/deliveries", openapi_extra=_LIST)
async def list_deliveries(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Deliveries, newest first; ?status=, ?limit=1..100, ?after=ID; or of one ?job_id= or ?batch_id=."""
    limit, after, filters = page_query(request, "status|job_id|batch_id")
    store, owner = gateway.deliveries, owner_of(request)
    statuses = [value for name, value in filters if name == "status"]
    status = member(DeliveryStatus, "status", statuses[-1]) if statuses else None
    object_id = _object_id([pair for pair in filters if pair[0] != "status"])
    if object_id is not None:
        found = await run_in_threadpool(store.of_object, object_id, owner)
        return page([one.to_json() for one in found if status in (None, one.status)], has_more=False)
    try:
        found, more = await run_in_threadpool(store.page, owner, limit, after, status)
    except DeliveryNotFound as error:
        raise unknown_after(error) from None
    return page([one.to_json() for one in found], more)


@router.get("/deliveries/{delivery_id}")
async def get_delivery(delivery_id: DeliveryId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """One delivery, with its payload and the outcome of each attempt."""
    found = await run_in_threadpool(gateway.deliveries.get, delivery_id, owner_of(request))
    return JSONResponse(found.to_json())


@router.post("/deliveries/{delivery_id}/replay")
async def replay_delivery(delivery_id: DeliveryId, request: Request, gateway: GatewayDep) -> JSONResponse:
    """Send the delivery again now, with the same webhook-id. Re-enables an endpoint that answered 410."""
    found = await run_in_threadpool(gateway.deliveries.replay, delivery_id, owner_of(request))
    return JSONResponse(found.to_json())


@router.get("/secret")
async def get_secret(request: Request, gateway: GatewayDep) -> JSONResponse:
    """The secret with which receivers verify signatures; created when first needed."""
    return _secrets_response(await run_in_threadpool(gateway.deliveries.secrets, owner_of(request)))


@router.post("/secret/rotate")
async def rotate_secret(request: Request, gateway: GatewayDep) -> JSONResponse:
    """Create a new secret. The previous one signs too for a day, during which a further rotation gets 409."""
    rotated = await run_in_threadpool(lambda: gateway.deliveries.secrets(owner_of(request), rotate=True))
    return _secrets_response(rotated)


def _secrets_response(secrets: Secrets) -> JSONResponse:
    content = {
        "object": "webhook.secret",
        "current": secrets.current,
        "previous": secrets.previous,
        "previous_until": secrets.previous_until,
    }
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


def _object_id(filters: Sequence[tuple[str, str]]) -> str | None:
    for name, value in filters:
        if not value:
            raise BadRequest(f"{name}: must not be empty", param=name)
        if len(filters) > 1:
            raise BadRequest(f"{name}: only one job_id or batch_id is allowed", param=name)
        return value
    return None
