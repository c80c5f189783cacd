"""Answers a request by its jobs, whole or as a stream. They are cancelled if its connection closes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from api.http.sse import EventStream, resumed
from api.requests.caller import caller_of
from api.requests.parsing import unless_closed
from api.requests.threads import run_in_threadpool
from api.service.dependencies import Gateway
from api.service.online_request import OnlineRequest
from api.service.online_run import OnlineRun


async def answered(
    request: Request,
    gateway: Gateway,
    online: OnlineRequest,
    whole: Callable[[OnlineRun], dict[str, Any]],
    events: Callable[[OnlineRun, str | None], AsyncGenerator[bytes, None]],
) -> Response:
    """events gets the model that is served; what it raises before the first event is raised here."""
    model = await run_in_threadpool(gateway.served) if online.stream else None
    run = await OnlineRun.start(gateway, online, caller_of(request))
    headers = {"x-request-id": run.jobs[0].id}
    try:
        if online.stream:
            stream = events(run, model)
            first = await unless_closed(request, anext(stream))
            return EventStream(resumed(first, stream), run.cancel_rest, headers)
        await unless_closed(request, run.wait())
    except BaseException:
        run.cancel_rest()
        raise
    run.cancel_rest()
    return JSONResponse(whole(run), headers=headers)
