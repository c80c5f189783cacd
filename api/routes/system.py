"""Models and health."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.http.error_responses import RETRY_AFTER_S
from api.requests.schemas import ErrorBody
from api.requests.threads import run_in_threadpool
from api.service.dependencies import GatewayDep
from api.service.model_routing import View, model_not_served
from tasks.base.errors import StoreUnavailable
from tasks.store.workers import WorkerInfo

router = APIRouter(tags=["system"])


@router.get("/v1/models")
async def list_models(gateway: GatewayDep) -> JSONResponse:
    """The available models, with the state and metrics of each worker.

    Models without workers are started on demand.
    """
    view = await run_in_threadpool(gateway.view)
    return JSONResponse({"object": "list", "data": [_model(name, view.able(name)) for name in view.served]})


@router.get("/v1/models/{model_id:path}", responses={404: {"model": ErrorBody}})
async def get_model(model_id: str, gateway: GatewayDep) -> JSONResponse:
    """One model; its name may contain slashes."""
    view = await run_in_threadpool(gateway.view)
    if model_id in view.served:
        return JSONResponse(_model(model_id, view.able(model_id)))
    if model_id in gateway.settings.model_aliases:
        target = gateway.settings.model_aliases[model_id] or None
        return JSONResponse(_model(model_id, view.able(target)))
    raise model_not_served(model_id, view.known)


@router.get("/healthz")
async def healthz() -> JSONResponse:
    """Liveness: the gateway itself responds."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", responses={503: {"description": "Redis or a model worker is unavailable"}})
async def readyz(gateway: GatewayDep) -> JSONResponse:
    """Readiness: Redis answers, and a model worker is alive or can be started on demand; otherwise 503.

    io_worker: whether an io worker is alive. Without one, batches and deferred jobs are accepted but wait,
    and the jobs of lost workers are not requeued.
    """
    try:
        view, has_leader = await run_in_threadpool(gateway.readiness)
        found = {"redis": True, "workers": len(view.workers), "io_worker": has_leader}
    except StoreUnavailable:
        view = View()
        found = {"redis": False, "workers": 0, "io_worker": False}
    if view.served:
        return JSONResponse(found)
    return JSONResponse(found, 503, {"Retry-After": str(RETRY_AFTER_S)})


def _model(name: str, workers: list[WorkerInfo]) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(min((worker.started_at for worker in workers), default=0)),
        "owned_by": "medusaq",
        "context_length": max((worker.context_length for worker in workers), default=None),
        "slots": sum(worker.slots for worker in workers),
        "workers": len(workers),
        "workers_detail": [
            {
                "id": worker.id,
                "host": worker.host,
                "pid": worker.pid,
                "started_at": worker.started_at,
                "slots": worker.slots,
                "context_length": worker.context_length,
                **worker.details,
                "metrics": worker.metrics,
            }
            for worker in workers
        ],
    }
