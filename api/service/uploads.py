"""Uploads: streams a multipart/form-data body from the socket into the file store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from anyio import CancelScope
from fastapi import Request
from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,
)

from api.http.errors import BadRequest, BodyTooLarge, UnsupportedMedia
from api.requests.parsing import MAX_EXPIRY_S, MIN_EXPIRY_S, owner_of, whole_number
from api.service.dependencies import Gateway
from tasks.files.manager import Upload
from tasks.files.records import FileRecord, Purpose

FORM_BYTES = 64 * 1024  # allowance for the rest of the body: boundaries, headers and the fields below
MAX_FIELD_BYTES = 1024
MAX_FILENAME = 255  # characters
WRITE_BYTES = 1024 * 1024  # buffered before each write, to switch threads less often
DEFAULT_EXPIRES_S = MAX_EXPIRY_S
FILE, PURPOSE, ANCHOR, SECONDS = "file", "purpose", "expires_after[anchor]", "expires_after[seconds]"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


async def receive_file(request: Request, gateway: Gateway, key: str | None) -> FileRecord:
    """Store the uploaded file. On any error nothing is kept.

    Raises ApiError, FilesLimit, IdempotencyConflict, StoreUnavailable and FileStoreUnavailable.
    """
    boundary = _boundary(request)
    form = _Form(gateway, owner_of(request), _most_bytes(request, gateway.settings.max_file_bytes))
    try:
        with PushMultipartParser(boundary) as parser:
            async for chunk in request.stream():  # the last is empty
                for event in parser.parse(chunk):
                    await form.take(event)
        return await form.finish(key)
    except MultipartError as error:
        raise BadRequest(
            f"the body is not a valid multipart form: {error.args[0]}", code="malformed_form"
        ) from None
    finally:
        with CancelScope(shield=True):
            await form.close()


def _boundary(request: Request) -> str:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != "multipart/form-data" or not options.get("boundary"):
        raise UnsupportedMedia("Content-Type: must be multipart/form-data with a boundary")
    return str(options["boundary"])


def _most_bytes(request: Request, limit: int) -> int:
    """Upper limit of the file's size, from Content-Length and the setting."""
    return min(int(request.headers.get("content-length", limit)), limit)


class _Form:
    """Consumes the form's parts in any order. A field is validated as soon as it is complete."""

    def __init__(self, gateway: Gateway, owner: str, most_bytes: int) -> None:
        self._gateway = gateway
        self._owner, self._most_bytes = owner, most_bytes
        self._max_bytes = gateway.settings.max_file_bytes
        self._fields: dict[str, str] = {}
        self._name = ""
        self._field = bytearray()
        self._filename = ""
        self._upload: Upload | None = None
        self._seen = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    async def take(self, event: MultipartSegment | bytes | None) -> None:
        """Process a parser event: a part's header, a chunk of its body, or its end (None)."""
        if event is None:
            if self._name != FILE:
                self._fields[self._name] = _checked(self._name, bytes(self._field))
        elif isinstance(event, MultipartSegment):
            await self._begin(event)
        elif self._name == FILE:
            await self._append(event)
        else:
            self._field += event
            if len(self._field) > MAX_FIELD_BYTES:
                raise BadRequest(f"{self._name}: must have at most {MAX_FIELD_BYTES} bytes", param=self._name)

    async def finish(self, key: str | None) -> FileRecord:
        if PURPOSE not in self._fields:
            raise BadRequest("purpose: is required", param=PURPOSE)
        if (upload := self._upload) is None:
            raise BadRequest("file: is required", param=FILE)
        expires_s = _expires_s(self._fields)
        await self._flush(upload)
        purpose = Purpose(self._fields[PURPOSE])
        finish = partial(upload.finish, self._filename, purpose, expires_s, key, self._owner)
        return await self._gateway.in_file_thread(finish)

    async def close(self) -> None:
        if self._upload is not None:
            await self._gateway.in_file_thread(self._upload.abort)

    async def _begin(self, part: MultipartSegment) -> None:
        self._name = part.name
        if self._name in self._fields or (self._name == FILE and self._upload is not None):
            raise BadRequest(f"{self._name}: must be sent only once", param=self._name)
        if self._name == FILE:
            self._filename = _filename(part.filename)
            begin = partial(self._gateway.files.begin, owner=self._owner, most_bytes=self._most_bytes)
            self._upload = await self._gateway.in_file_thread(begin)
        elif self._name in (PURPOSE, ANCHOR, SECONDS):
            self._field.clear()
        else:
            raise BadRequest(f"{self._name}: there is no such field", code="unknown_field", param=self._name)

    async def _append(self, data: bytes) -> None:
        assert self._upload is not None
        self._seen += len(data)
        if self._seen > self._max_bytes:
            raise BodyTooLarge(f"the file is over the limit of {self._max_bytes} bytes", param=FILE)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= WRITE_BYTES:
            await self._flush(self._upload)

    async def _flush(self, upload: Upload) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        await self._gateway.in_file_thread(partial(upload.write, data))


def _checked(name: str, value: bytes) -> str:
    """The value of a field; raises BadRequest."""
    text = value.decode("utf-8", errors="replace")
    if name == PURPOSE and text != Purpose.BATCH:
        raise BadRequest("purpose: must be batch", param=PURPOSE)
    if name == ANCHOR and text != "created_at":
        raise BadRequest(f"{ANCHOR}: must be created_at", param=ANCHOR)
    if name == SECONDS:
        whole_number(text, MIN_EXPIRY_S, MAX_EXPIRY_S, SECONDS)
    return text


def _expires_s(fields: Mapping[str, str]) -> int:
    if (ANCHOR in fields) != (SECONDS in fields):
        missing = SECONDS if ANCHOR in fields else ANCHOR
        raise BadRequest(
            f"{missing}: is required, since the other field of expires_after was sent", param=missing
        )
    return int(fields[SECONDS]) if SECONDS in fields else DEFAULT_EXPIRES_S


def _filename(name: str | None) -> str:
    """The file name without folders. Raises BadRequest if it is empty, as when no file was chosen."""
    name = _UNPRINTABLE.sub("", (name or "").replace("\\", "/").rpartition("/")[2]).strip()
    if not name:
        raise BadRequest("file: must be sent as a file with a name", param=FILE)
    return name[:MAX_FILENAME]
