"""A response header that names each request, so that a client's report can be found in the gateway's log."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.headers import REQUEST_ID, given_request_id, new_request_id
from tasks.base.json_logs import about_request


class RequestId:
    """ASGI middleware around the whole application. A sane id of the client's is kept, otherwise one is made.

    A response may bring its own id, which gives way only to the client's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = given_request_id(Headers(scope=scope).getlist(REQUEST_ID))
        request_id = given or new_request_id()
        # Never reset: each request has a task of its own, and uvicorn logs its errors after this returns.
        about_request(request_id)
        scope.setdefault("state", {})[REQUEST_ID] = request_id

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if given is not None:
                    headers[REQUEST_ID] = given
                else:
                    headers.setdefault(REQUEST_ID, request_id)
            await send(message)

        await self._app(scope, receive, sending)
