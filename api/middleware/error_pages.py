"""Shows a refusal as a page to a person who opened an address in a browser; programs get JSON."""

from __future__ import annotations

import html
import http
import json

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.headers import JSON_TYPE, media_type

POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'"
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{status} {phrase} - medusaq</title>
<link rel="icon" href="/console/icon.svg">
<link rel="stylesheet" href="/console/styles/base.css">
<link rel="stylesheet" href="/console/styles/parts.css">
<main class="lone">
<p class="eyebrow">{status} {phrase}</p>
<h1>{title}</h1>
<p>{message}</p>
<p><a class="button primary" href="/">Open the console</a> <a class="button" href="/docs">Read the API</a></p>
</main>
</html>
"""
NOWHERE = "The gateway has a console, the documentation of its API, and the API itself."
TITLES = {404: "There is nothing at this address", 401: "This address needs an API key"}


class ErrorPages:
    """ASGI middleware: replaces JSON errors of what a browser's address bar asked for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_navigation(scope):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def sending(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_error(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    await _send_page(start, body, send)

        await self._app(scope, receive, sending)


def _is_navigation(scope: Scope) -> bool:
    return scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", "")


def _is_error(message: Message) -> bool:
    return message["status"] >= 400 and media_type(Headers(raw=message["headers"])) == JSON_TYPE


async def _send_page(start: Message, body: bytes, send: Send) -> None:
    status = start["status"]
    page = PAGE.format(
        status=status,
        phrase=_phrase(status),
        title=TITLES.get(status, "This did not work"),
        message=html.escape(_message(body, status)),
    ).encode()
    headers = MutableHeaders(raw=start["headers"])
    headers["content-type"] = "text/html; charset=utf-8"
    headers["content-length"] = str(len(page))
    headers["content-security-policy"] = POLICY
    await send(start)
    await send({"type": "http.response.body", "body": page})


def _message(body: bytes, status: int) -> str:
    message = str(json.loads(body)["error"]["message"])
    return NOWHERE if message == _phrase(status) else message


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error"
