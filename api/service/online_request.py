"""Parses a request to an online endpoint into the jobs that it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.http.errors import BadRequest, BodyTooLarge
from tasks.base.errors import InvalidRequest
from tasks.records.endpoints import COMPLETIONS, RESPONSES
from tasks.records.job import random_seed
from tasks.schema import openai_requests
from tasks.schema.job_request import SEED_LIMIT, JobRequest, invalid_body, invalid_request, parse, read_object
from tasks.schema.openai_requests import as_written, body_fields

MAX_CHOICES = 128  # OpenAI's limit of n; larger requests belong in a batch
MOST_BODIES = 4  # limit on the bodies of all jobs of one request together, in units of max_body_bytes

E = TypeVar("E", InvalidRequest, BadRequest)


@dataclass(frozen=True, slots=True)
class OnlineRequest:
    """job: the fields that the jobs of all choices share. variants: the fields in which the job of each
    choice differs, `n` per prompt. include_usage: send a last chunk with the usage. include_drafts: mark what
    was drafted in the chunks. body: as sent. kept: whether the records are kept as long as other jobs'.
    """

    job: JobRequest
    variants: tuple[dict[str, Any], ...]
    n: int
    stream: bool
    include_usage: bool
    include_drafts: bool
    body: dict[str, Any]
    kept: bool = False


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None
    include_drafts: bool | None = None


class _Options(BaseModel):
    """The fields that apply to the request and not to its jobs."""

    model_config = ConfigDict(strict=True)
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


def read(data: bytes, endpoint: str, most_bytes: int) -> OnlineRequest:
    """Parse a body. Raises InvalidRequest, and BodyTooLarge if its jobs exceed most_bytes together."""
    body = read_object(data)
    try:
        options = _Options.model_validate(body)
    except ValidationError as error:
        raise invalid_body(error) from None
    n = options.n or 1
    job_body = {name: value for name, value in body.items() if name not in ("n", "stream")}
    if job_body.get("best_of") == n:
        del job_body["best_of"]
    prompts = _prompts(body) if endpoint == COMPLETIONS else None
    if prompts is not None and len(prompts) * n > MAX_CHOICES:
        message = f"prompt: {len(prompts)} prompts with n={n} exceed {MAX_CHOICES} answers: use a batch"
        raise InvalidRequest(message, param="prompt")
    if (total := _bytes_of_all(len(data), prompts, n)) > most_bytes:
        param = "prompt" if n == 1 else "n"
        message = (
            f"{param}: the prompts of all answers have {total:,} bytes, over the limit of {most_bytes:,}"
        )
        raise BodyTooLarge(message, param=param)
    job = _job(endpoint, job_body) if prompts is None else _first_job(job_body, prompts)
    extras = options.stream_options or _StreamOptions()
    return OnlineRequest(
        job=job,
        variants=_variants(job, prompts, n),
        n=n,
        stream=bool(options.stream),
        include_usage=bool(extras.include_usage),
        include_drafts=bool(extras.include_drafts),
        body=body,
    )


def read_response(
    body: dict[str, Any], earlier: Sequence[Mapping[str, Any]], most_bytes: int
) -> OnlineRequest:
    """A request to RESPONSES. earlier: the messages of the responses that it continues.

    Raises InvalidRequest, and BodyTooLarge if the whole conversation exceeds most_bytes.
    """
    try:
        options = _Options.model_validate({"stream": body.get("stream")})
    except ValidationError as error:
        raise invalid_body(error) from None
    given = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    fields, problems = body_fields(RESPONSES, given)
    for problem in problems:
        raise invalid_request(problem)
    at = 1 if fields["response"]["instructed"] else 0
    fields["messages"][at:at] = earlier
    data = json.dumps(fields).encode()
    if len(data) > most_bytes:
        message = f"input: the conversation has {len(data):,} bytes, over the limit of {most_bytes:,}"
        raise BodyTooLarge(message, param="input")
    job = _parsed(data, given)
    kept = job.response is not None and job.response.store
    return OnlineRequest(
        job=job,
        variants=({},),
        n=1,
        stream=bool(options.stream),
        include_usage=False,
        include_drafts=False,
        body=body,
        kept=kept,
    )


def _prompts(body: dict[str, Any]) -> list[str] | None:
    """The prompts if there are several; None for anything else."""
    prompts = body.get("prompt")
    if isinstance(prompts, list) and len(prompts) > 1 and all(isinstance(p, str) for p in prompts):
        return prompts
    return None


def _bytes_of_all(body: int, prompts: list[str] | None, n: int) -> int:
    """Total size of the jobs. Each has one prompt and a copy of the rest of the body."""
    if prompts is None:
        return body * n
    rest = body - sum(len(prompt.encode(errors="surrogatepass")) for prompt in prompts)
    return n * (body + (len(prompts) - 1) * max(0, rest))


def _first_job(body: dict[str, Any], prompts: list[str]) -> JobRequest:
    """The job of the first prompt. The other prompts are only validated: the body may be megabytes."""
    first = _job(COMPLETIONS, {**body, "prompt": prompts[0]}, "prompt.0")
    for index, prompt in enumerate(prompts[1:], 1):
        _job(COMPLETIONS, {"prompt": prompt}, f"prompt.{index}")
    return first


def _job(endpoint: str, body: dict[str, Any], prompt: str = "prompt") -> JobRequest:
    """prompt: the name of the prompt field in error messages."""
    fields, problems = body_fields(endpoint, body)
    for problem in problems:
        raise invalid_request(problem)
    return _parsed(json.dumps(fields).encode(), body, prompt)


def _parsed(data: bytes, body: dict[str, Any], prompt: str = "prompt") -> JobRequest:
    try:
        return parse(data, JobRequest)
    except InvalidRequest as error:
        if error.param is None:
            raise
        field = prompt if error.param == "prompt" else as_written(error.param, body)
        raise renamed(error, field) from None


def renamed(error: E, param: str) -> E:
    """The same error with another name for its field."""
    message = str(error) if error.param is None else openai_requests.renamed(str(error), error.param, param)
    return type(error)(message, code=error.code, param=param)


def _variants(job: JobRequest, prompts: list[str] | None, n: int) -> tuple[dict[str, Any], ...]:
    """The differing fields of each choice, which include its own seed."""
    if prompts is None and n == 1:
        return ({},)
    variants: list[dict[str, Any]] = []
    for own in [{}] if prompts is None else [{"prompt": prompt} for prompt in prompts]:
        seed = random_seed() if job.seed is None else job.seed
        variants += [{**own, "seed": (seed + i) % SEED_LIMIT} for i in range(n)]
    return tuple(variants)
