"""The bodies of the job endpoints, and their validation errors as one line that names the field."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from api.errors import BadRequest
from tasks.job import Acceptance, Decoding, Priority, Status

MAX_STOPS = 16
MAX_BIASES = 1024  # more than any caller was seen to send, few enough to apply at every step
MAX_METADATA = 16  # the limits of the OpenAI API: 16 keys, 64 and 512 characters
MAX_TOKENS = 2**31 - 1  # a C int; what the model allows is checked against the live workers
SEED_LIMIT = 2**63  # signed 64-bit, as the engine takes it


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _in_future(deadline: float) -> float:
    if deadline <= time.time():
        raise PydanticCustomError("deadline_passed", "must be in the future, in Unix seconds")
    return deadline


Stop = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
MetaKey = Annotated[str, Field(min_length=1, max_length=64)]
MetaValue = Annotated[str, Field(max_length=512)]


class Strict(BaseModel):
    """A body as its caller wrote it: no field unknown, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


S = TypeVar("S", bound=Strict)


class Message(Strict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class JobRequest(Strict):
    """A prompt to complete: exactly one of prompt and messages.

    prompt is one user turn through the model's chat template, or the text as it stands with raw.
    """

    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    raw: bool = False
    model: Annotated[str, Field(min_length=1)] | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    temperature: float = Field(0.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, lt=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=0, lt=SEED_LIMIT)
    stop: Annotated[list[Stop], BeforeValidator(_listed), Field(max_length=MAX_STOPS)] = Field(
        [], json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    )
    stop_token_ids: list[TokenId] = Field([], max_length=MAX_STOPS)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[TokenKey, Bias] = Field({}, max_length=MAX_BIASES)
    logprobs: int | None = Field(None, ge=0, le=20)
    ignore_eos: bool = False
    decoding: Decoding = Field(
        Decoding.AUTO,
        description="auto drafts tokens wherever that is measured to pay; normal never does; medusa drafts "
        "at every step with the model's Medusa heads, for comparison: code no_heads where it has none.",
    )
    acceptance: Acceptance = Field(
        Acceptance.EXACT,
        description="exact: drafted tokens stand only where plain decoding would have chosen them, at any "
        "temperature. typical is lossy: they stand when likely enough; faster at a high temperature.",
    )
    priority: Priority = Priority.INTERACTIVE
    deadline: Annotated[float, AfterValidator(_in_future)] | None = None
    metadata: dict[MetaKey, MetaValue] = Field({}, max_length=MAX_METADATA)

    @model_validator(mode="after")
    def _one_input(self) -> JobRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError(
                "one_input", "give exactly one of prompt and messages", {"param": "prompt"}
            )
        if self.raw and self.prompt is None:
            raise PydanticCustomError("raw_prompt", "raw needs a prompt, not messages", {"param": "raw"})
        return self

    def sent(self) -> dict[str, Any]:
        """What the caller gave, ready for JSON."""
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class Timing(BaseModel):
    """Seconds since the job was created; tokens_per_s leaves the queue out."""

    queue_s: float
    first_token_s: float | None
    total_s: float
    tokens_per_s: float


class Drafts(BaseModel):
    """Draft tokens of one source. acceptance is accepted over verified."""

    verified: int
    accepted: int
    acceptance: float | None


class Speculation(BaseModel):
    """steps of the model that gave these tokens; sources by name (medusa, lookup), those that drafted."""

    steps: int
    tokens_per_step: float
    sources: dict[str, Drafts]


class Result(BaseModel):
    text: str
    finish_reason: str
    usage: Usage
    logprobs: list[dict[str, Any]] | None
    timing: Timing
    speculation: Speculation | None = None  # workers of before it wrote none


class JobError(BaseModel):
    code: str
    message: str
    param: str | None


class JobRecord(BaseModel):
    """A job. Times are Unix seconds; a cancelled or expired job keeps its partial result."""

    id: str
    object: Literal["job"]
    status: Status
    priority: Priority
    model: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    deadline: float | None
    attempts: int
    worker: str | None
    metadata: dict[str, str]
    request: dict[str, Any]
    result: Result | None
    error: JobError | None


class JobList(BaseModel):
    object: Literal["list"]
    data: list[JobRecord]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    error: ErrorDetail


def parse(body: bytes, kind: type[S]) -> S:
    """The request in a body; raises BadRequest with the code and the field at fault."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the body is not valid UTF-8: byte {error.start} cannot be decoded"
        raise BadRequest(message, code="invalid_utf8") from None
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise _bad_request(error) from None


def _bad_request(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    kind, message = first["type"], first["msg"]
    if kind == "json_invalid":
        return BadRequest(f"the body is not valid JSON: {first['ctx']['error']}", code="malformed_json")
    param = ".".join(str(part) for part in first["loc"]) or first.get("ctx", {}).get("param")
    if param is None:
        return BadRequest(f"the body: {message}")
    if kind == "extra_forbidden":
        return BadRequest(f"{param}: there is no such field", code="unknown_field", param=param)
    return BadRequest(f"{param}: {message[0].lower()}{message[1:]}", param=param)
