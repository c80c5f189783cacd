"""Lines of a batch file, one verdict each: ready to be sent, or refused with a code. Never an exception."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from common.json_text import compact
from common.unicode import is_unicode
from tasks.records.endpoints import JOBS, RESPONSES
from tasks.records.packed_line import Line
from tasks.schema.job_request import (
    HALF_PAIR,
    TOO_MANY,
    TOO_MANY_VALUES,
    Problem,
    has_too_many_values,
    read_job,
)
from tasks.schema.json_lines import BAD_JSON, TOO_LONG, decoded, json_object
from tasks.schema.openai_requests import MAX_CUSTOM_ID, default_id, in_body, is_batch_line, line_fields

PREFIX_CHARS = 512  # lines that share so much of their beginning are sent near each other
KINDS: Mapping[bytes, str] = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"%PDF": "a PDF",
}


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """A line that cannot be run, and why; custom_id where it has one that is its own."""

    number: int
    custom_id: str | None
    problem: Problem


def kind_of(start: bytes) -> str | None:
    """What a file is that is certainly no JSON lines, by its first bytes."""
    return next((kind for mark, kind in KINDS.items() if start.startswith(mark)), None)


class LineDecoder:
    """Decodes the lines of one file, which must all name one endpoint, one model, and ids of their own.

    A line may also be the fields of a job as they stand, as `medusaq run` takes them; RESPONSES alone, whose
    requests are others, has none of these. Bodies of JOBS may name several models. default_model: of lines
    that name none; choose_from: the models of which they must name one, where there is no such default.
    max_tokens, every_model: of all lines, in place of theirs. aliases: further names of models, "" for that
    of lines that name none.
    """

    def __init__(
        self,
        endpoint: str,
        max_bytes: int,
        default_max_tokens: int,
        default_model: str = "",
        choose_from: Collection[str] = (),
        max_tokens: int | None = None,
        every_model: str = "",
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.model: str | None = None  # that of the first good line that names one
        self._endpoint = endpoint
        self._max_bytes = max_bytes
        self._default_max_tokens = default_max_tokens
        self._default_model, self._choose_from = default_model, choose_from
        self._max_tokens = max_tokens
        self._every_model, self._aliases = every_model, aliases
        self._seen: dict[bytes, int] = {}  # digest of a custom_id -> line

    def decode(self, number: int, raw: bytes | None) -> Line | InvalidLine:
        """raw: a line, or None for one that is too long."""
        if raw is None:
            too_long = Problem(f"longer than {self._max_bytes:,} bytes", code=TOO_LONG)
            return InvalidLine(number, None, too_long)
        value = _object(raw)
        if isinstance(value, Problem):
            return InvalidLine(number, None, value)
        custom_id, enveloped = value.get("custom_id"), is_batch_line(value)
        if custom_id is None and not enveloped:
            custom_id = default_id(number)
        halves = b"\\ud" in raw or b"\\uD" in raw  # spelled in no other way
        if (wrong := self._id_problem(number, custom_id, halves)) is not None:
            return InvalidLine(number, None, wrong)
        assert isinstance(custom_id, str)
        if halves and not is_unicode(value):  # a refusal may repeat any part of it
            return InvalidLine(number, custom_id, Problem(HALF_PAIR, code=BAD_JSON))
        fields, problems = line_fields(value)
        elsewhere = value.get("url") != self._endpoint if enveloped else self._endpoint == RESPONSES
        if elsewhere and not any(p.field == "url" for p in problems):
            problems.append(Problem(f"the batch is for {self._endpoint}", "url", "url_mismatch"))
        job = problems or read_job(fields)
        if isinstance(job, list):
            return InvalidLine(number, custom_id, (problems or in_body(job, value))[0])
        named = self._every_model or job.model or ""
        model = self._aliases.get(named, named) or self._default_model
        if not model and self._choose_from:
            names = ", ".join(self._choose_from)
            return InvalidLine(number, custom_id, Problem(f"name one of {names}", "model", "model_required"))
        self.model = self.model or model or None
        if model not in ("", self.model) and self._endpoint != JOBS:  # whose jobs each name their own
            return InvalidLine(
                number, custom_id, Problem(f"the batch is for {self.model!r}", "model", "model_mismatch")
            )
        sent = job.fixed(self._default_max_tokens)
        sent.pop("model", None)
        if self._max_tokens is not None:
            sent["max_tokens"] = self._max_tokens
        request = compact(sent)
        return Line(number, custom_id, model, request, sent["max_tokens"], _prefix(sent))

    def refused(self, number: int, custom_id: object, problem: Problem) -> InvalidLine:
        """Of a line that could not be made; a custom id that is wrong comes first."""
        found = self._id_problem(number, custom_id, halves=not is_unicode(custom_id))
        return InvalidLine(number, None, found) if found else InvalidLine(number, str(custom_id), problem)

    def _id_problem(self, number: int, custom_id: object, halves: bool) -> Problem | None:
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
            return Problem(
                f"must be a text of 1 to {MAX_CUSTOM_ID} characters", "custom_id", "invalid_custom_id"
            )
        if halves and not is_unicode(custom_id):
            return Problem(HALF_PAIR, "custom_id", BAD_JSON)
        first = self._seen.setdefault(digest(custom_id), number)
        if first != number:
            return Problem(f"{custom_id!r} is that of line {first} too", "custom_id", "duplicate_custom_id")
        return None


def digest(text: str) -> bytes:
    """What stands for a text in memory, however long the text: no two have the same."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _object(raw: bytes) -> dict[str, Any] | Problem:
    if has_too_many_values(raw):
        return Problem(TOO_MANY, code=TOO_MANY_VALUES)
    text = decoded(raw, BAD_JSON)
    return text if isinstance(text, Problem) else json_object(text)


def _prefix(request: Mapping[str, Any]) -> str | None:
    """What a line shares with others if they have the same instruction; None for a short one."""
    if (prompt := request.get("prompt")) is not None:
        text = str(prompt)
    else:
        text = ""
        for message in request["messages"]:
            text += f"{message['role']}\0{message.get('content') or ''}\0"
            if len(text) >= PREFIX_CHARS:
                break
    return text[:PREFIX_CHARS] if len(text) >= PREFIX_CHARS else None
