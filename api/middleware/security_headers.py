"""Security headers for browsers, and the only HTML page: /docs."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.headers import API_HEADERS

DOCS = "/docs"
SWAGGER_UI = {  # served from here, not from a CDN: users enter API keys there
    f"{DOCS}/swagger-ui-bundle.js": "text/javascript",
    f"{DOCS}/swagger-ui.css": "text/css",
}
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class SecurityHeaders:
    """ASGI middleware: adds API_HEADERS to every response that does not set them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in API_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sending)


def add_docs(app: FastAPI) -> None:
    """Add /docs, whose inline script the policy allows by its hash, and the files of Swagger UI."""
    script, style = SWAGGER_UI
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=f"{app.title} - API",
        swagger_js_url=script,
        swagger_css_url=style,
        swagger_favicon_url="data:,",
    )
    html = bytes(page.body).decode()
    scripts = " ".join(f"'sha256-{_sha256(text)}'" for text in _INLINE.findall(html))
    policy = (
        f"default-src 'none'; script-src 'self' {scripts}; "
        "style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )

    @app.get(DOCS, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    folder = Path(str(resources.files("fastapi_swagger") / "resources"))
    for path, kind in SWAGGER_UI.items():
        _add_file(app, path, folder / Path(path).name, kind)


def _add_file(app: FastAPI, path: str, file: Path, kind: str) -> None:
    @app.get(path, include_in_schema=False)
    async def content() -> FileResponse:
        return FileResponse(file, media_type=kind, headers={"Cache-Control": "max-age=3600"})


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
