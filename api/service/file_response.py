"""Responses that stream the content of a file, or a range of it, from the file store."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import BinaryIO

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from api.http.errors import BadKey
from api.requests.open_requests import OpenKey
from api.service.dependencies import Gateway
from tasks.base.errors import FileStoreUnavailable
from tasks.files.records import FileRecord

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024  # size of a chunk


async def open_content(gateway: Gateway, file: FileRecord) -> BinaryIO:
    """Open the content of a file. Raises ObjectMissing and FileStoreUnavailable."""
    return await gateway.in_file_thread(partial(gateway.files.objects.open, file.object_name))


class Download(StreamingResponse):
    """Streams chunks. If the key is revoked, it closes the connection before the response is complete."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        key: OpenKey,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(chunks, status, headers, media_type)
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_to_holder(message: Message) -> None:
            """Stop waiting for a slow client once the key is revoked."""
            await self._key.unless_revoked(send(message))

        try:
            await super().__call__(scope, receive, send_to_holder)
        except* BadKey:  # raised by the concurrent tasks that send and that listen for a disconnect
            log.info("a download was aborted: its API key was revoked")


class ContentResponse(Download):
    """Streams the content of a file, and closes it at the end. span None is the whole file."""

    def __init__(
        self,
        gateway: Gateway,
        content: BinaryIO,
        file: FileRecord,
        key: OpenKey,
        span: range | None = None,
        media_type: str = "application/octet-stream",
    ) -> None:
        self._gateway = gateway
        self._content = content
        size = file.bytes
        name = urllib.parse.quote(file.filename, safe="")
        headers = {
            "Accept-Ranges": "bytes",
            "Content-Length": str(size if span is None else len(span)),
            "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
            "X-Content-Type-Options": "nosniff",  # user content: browsers must not render it
        }
        if span is not None:
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{size}"
        chunks = self._chunks(range(size) if span is None else span)
        status = 200 if span is None else 206
        super().__init__(chunks, key, status, headers, media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._content.close()

    async def _chunks(self, span: range) -> AsyncIterator[bytes]:
        left = len(span)
        await self._gateway.in_file_thread(partial(self._content.seek, span.start))
        while left:
            chunk = await self._gateway.in_file_thread(partial(self._content.read, min(left, READ_BYTES)))
            if not chunk:
                raise FileStoreUnavailable(f"the content is {left} bytes shorter than recorded")
            left -= len(chunk)
            yield chunk
