"""Serves the files of the console, from memory: they are small."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response

FOLDER = Path(__file__).parent / "static"
ROOT = "/"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# No inline script or style, nothing of another host, and no script that is made of text.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def _found() -> dict[str, Path]:
    """The files by their paths. `index.html` is the page itself."""
    files = sorted(path for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES)
    named = {f"/console/{path.relative_to(FOLDER).as_posix()}": path for path in files}
    return {ROOT if path.name == "index.html" else name: path for name, path in named.items()}


PAGES = _found()


def add_console(app: FastAPI) -> None:
    for path, file in PAGES.items():
        _add(app, path, file.read_bytes(), MEDIA_TYPES[file.suffix])


def _add(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    """Browsers ask each time whether they have the newest: modules of two versions do not fit together."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "ETag": tag}

    @app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)
