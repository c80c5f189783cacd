"""What a request to an online endpoint asks for: the jobs that it takes, and how they are answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.errors import BadRequest
from tasks import openai_format
from tasks.endpoints import COMPLETIONS
from tasks.errors import InvalidRequest
from tasks.job import random_seed
from tasks.openai_format import as_written, body_fields
from tasks.requests import SEED_LIMIT, JobRequest, parse, read_object, refusal, refused

MAX_CHOICES = 128  # of one request, OpenAI's limit of n: more belong in a batch

E = TypeVar("E", InvalidRequest, BadRequest)


@dataclass(frozen=True, slots=True)
class Asked:
    """jobs in the order of their choices, `n` for each prompt. include_usage: a last chunk with the usage."""

    jobs: tuple[JobRequest, ...]
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


def read(data: bytes, endpoint: str) -> Asked:
    """From the body of a request; raises InvalidRequest."""
    body = read_object(data)
    try:
        options = _Options.model_validate(body)
    except ValidationError as error:
        raise refusal(error) from None
    n = options.n or 1
    job_body = {name: value for name, value in body.items() if name not in ("n", "stream")}
    if job_body.get("best_of") == n:
        del job_body["best_of"]
    prompts = _prompts(body) if endpoint == COMPLETIONS else None
    if prompts is None:
        first = [_job(endpoint, job_body)]
    elif len(prompts) * n > MAX_CHOICES:
        message = f"prompt: {len(prompts)} prompts with n {n} are over {MAX_CHOICES} answers: use a batch"
        raise InvalidRequest(message, param="prompt")
    else:
        first = _jobs(job_body, prompts)
    usage = options.stream_options is not None and bool(options.stream_options.include_usage)
    jobs = tuple(again for job in first for again in _repeated(job, n))
    return Asked(jobs, n, bool(options.stream), usage, body)


def _prompts(body: dict[str, Any]) -> list[str] | None:
    """Several prompts; None for anything else."""
    prompts = body.get("prompt")
    if isinstance(prompts, list) and len(prompts) > 1 and all(isinstance(p, str) for p in prompts):
        return prompts
    return None


def _jobs(body: dict[str, Any], prompts: list[str]) -> list[JobRequest]:
    """A job for each prompt. The rest of the body may be megabytes: it is read once."""
    first = _job(COMPLETIONS, {**body, "prompt": prompts[0]}, "prompt.0")
    rest = [
        _job(COMPLETIONS, {"prompt": prompt}, f"prompt.{place}").prompt
        for place, prompt in enumerate(prompts[1:], 1)
    ]
    return [first, *(first.model_copy(update={"prompt": prompt}) for prompt in rest)]


def _job(endpoint: str, body: dict[str, Any], prompt: str = "prompt") -> JobRequest:
    """prompt is what that field is called here."""
    fields, problems = body_fields(endpoint, body)
    for problem in problems:
        raise refused(problem)
    try:
        return parse(json.dumps(fields).encode(), JobRequest)
    except InvalidRequest as error:
        if error.param is None:
            raise
        written = prompt if error.param == "prompt" else as_written(error.param, body)
        raise renamed(error, written) from None


def renamed(error: E, param: str) -> E:
    """The same error with another name for the field at fault."""
    message = str(error) if error.param is None else openai_format.renamed(str(error), error.param, param)
    return type(error)(message, code=error.code, param=param)


def _repeated(job: JobRequest, n: int) -> list[JobRequest]:
    """The job n times, each with a seed of its own."""
    if n == 1:
        return [job]
    seed = random_seed() if job.seed is None else job.seed
    return [job.model_copy(update={"seed": (seed + i) % SEED_LIMIT}) for i in range(n)]
