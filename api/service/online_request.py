"""What a request to an online endpoint asks for: the jobs that it takes, and how they are answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.http.errors import BadRequest, BodyTooLarge
from tasks.base.errors import InvalidRequest
from tasks.records.endpoints import COMPLETIONS
from tasks.records.job import random_seed
from tasks.schema import openai_requests
from tasks.schema.job_request import SEED_LIMIT, JobRequest, invalid_body, invalid_request, parse, read_object
from tasks.schema.openai_requests import as_written, body_fields

MAX_CHOICES = 128  # of one request, OpenAI's limit of n: more belong in a batch
MOST_BODIES = 16  # of the largest size: all jobs of one request, each with the whole of its own prompt

E = TypeVar("E", InvalidRequest, BadRequest)


@dataclass(frozen=True, slots=True)
class Asked:
    """job: what the jobs of all choices have in common. variants: of each choice, in order and `n` for each
    prompt, the fields of its job that are not those of `job`. include_usage: a last chunk with the usage.
    """

    job: JobRequest
    variants: tuple[dict[str, Any], ...]
    n: int
    stream: bool
    include_usage: bool
    body: dict[str, Any]


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class _Options(BaseModel):
    """What is no job's own."""

    model_config = ConfigDict(strict=True)
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


def read(data: bytes, endpoint: str, most_bytes: int) -> Asked:
    """From the body of a request; raises InvalidRequest, and BodyTooLarge for jobs over most_bytes."""
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
        message = f"prompt: {len(prompts)} prompts with n {n} are over {MAX_CHOICES} answers: use a batch"
        raise InvalidRequest(message, param="prompt")
    if (together := _bytes_of_all(len(data), prompts, n)) > most_bytes:
        param = "prompt" if n == 1 else "n"
        message = (
            f"{param}: the prompts of all answers have {together:,} bytes, over the limit of {most_bytes:,}"
        )
        raise BodyTooLarge(message, param=param)
    job = _job(endpoint, job_body) if prompts is None else _first_job(job_body, prompts)
    usage = options.stream_options is not None and bool(options.stream_options.include_usage)
    return Asked(job, _variants(job, prompts, n), n, bool(options.stream), usage, body)


def _prompts(body: dict[str, Any]) -> list[str] | None:
    """Several prompts; None for anything else."""
    prompts = body.get("prompt")
    if isinstance(prompts, list) and len(prompts) > 1 and all(isinstance(p, str) for p in prompts):
        return prompts
    return None


def _bytes_of_all(body: int, prompts: list[str] | None, n: int) -> int:
    """Of a body of so many bytes: what its jobs hold, which all have the rest of the body beside a prompt."""
    if prompts is None:
        return body * n
    rest = body - sum(len(prompt.encode(errors="surrogatepass")) for prompt in prompts)
    return n * (body + (len(prompts) - 1) * max(0, rest))


def _first_job(body: dict[str, Any], prompts: list[str]) -> JobRequest:
    """The job of the first prompt; the others are checked. The rest may be megabytes: it is read once."""
    first = _job(COMPLETIONS, {**body, "prompt": prompts[0]}, "prompt.0")
    for place, prompt in enumerate(prompts[1:], 1):
        _job(COMPLETIONS, {"prompt": prompt}, f"prompt.{place}")
    return first


def _job(endpoint: str, body: dict[str, Any], prompt: str = "prompt") -> JobRequest:
    """prompt is what that field is called here."""
    fields, problems = body_fields(endpoint, body)
    for problem in problems:
        raise invalid_request(problem)
    try:
        return parse(json.dumps(fields).encode(), JobRequest)
    except InvalidRequest as error:
        if error.param is None:
            raise
        written = prompt if error.param == "prompt" else as_written(error.param, body)
        raise renamed(error, written) from None


def renamed(error: E, param: str) -> E:
    """The same error with another name for the field at fault."""
    message = str(error) if error.param is None else openai_requests.renamed(str(error), error.param, param)
    return type(error)(message, code=error.code, param=param)


def _variants(job: JobRequest, prompts: list[str] | None, n: int) -> tuple[dict[str, Any], ...]:
    """Each answer has a seed of its own."""
    if prompts is None and n == 1:
        return ({},)
    made: list[dict[str, Any]] = []
    for own in [{}] if prompts is None else [{"prompt": prompt} for prompt in prompts]:
        seed = random_seed() if job.seed is None else job.seed
        made += [{**own, "seed": (seed + i) % SEED_LIMIT} for i in range(n)]
    return tuple(made)
