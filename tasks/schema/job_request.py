"""The schema of a job, shared by the HTTP gateway, batch files and the command.

It does not import the web framework. A Problem describes an invalid body in one line that names the field.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import ErrorDetails

from tasks.base.errors import InvalidRequest
from tasks.records.job import MAX_TEMPERATURE, Acceptance, Decoding, Priority, random_seed
from tasks.schema.messages import (
    Message,
    NamedTool,
    ResponseFormat,
    ResponseOrigin,
    Strict,
    Tool,
    ToolChoice,
    wrong,
)
from tasks.schema.webhook_request import JobWebhook

MAX_STOPS = 16
MAX_STOP = 512  # characters: at each token the text's end is compared with every prefix of it
MAX_BIASES = 1024  # more than any caller was seen to send, few enough to apply at every step
MAX_METADATA = 16  # the limits of the OpenAI API: 16 keys, 64 and 512 characters
MAX_TOOLS = 128  # likewise
MAX_MODEL = 1024  # characters of a name: it is part of keys of Redis, and errors repeat it
MAX_MESSAGES = 2048  # likewise
MOST_FINDINGS = 1000  # of one body: each takes 40 µs and a kilobyte to describe
MAX_VALUES = 30_000  # JSON values of a body: 2,048 messages that each call a tool have 20,000
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # also unterminated, to match in linear time
MOST_SHOWN = 500  # characters of a field or message in an error: the sender chose them
LAST_SECOND = 253_402_300_799  # of the year 9999, in Unix seconds
MAX_TOKENS = 2**31 - 1  # a C int; what the model allows is checked against the live workers
SEED_LIMIT = 2**63  # signed 64-bit, as the engine takes it
INVALID_VALUE = "invalid_value"
TOO_MANY_VALUES = "too_many_values"
UNKNOWN_FIELD = "unknown_field"
HALF_PAIR = "holds half of a surrogate pair, which UTF-8 cannot carry"
TOO_DEEP = "nested too deeply"
TOO_MANY = f"holds more than {MAX_VALUES:,} values"


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a body; field is the dotted path of the field at fault, as the user wrote it."""

    message: str
    field: str | None = None
    code: str = INVALID_VALUE

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", self.message[:MOST_SHOWN])
        if self.field is not None:
            object.__setattr__(self, "field", self.field[:MOST_SHOWN])

    def __str__(self) -> str:
        return self.message if self.field is None else f"{self.field}: {self.message}"


TOO_MUCH_WRONG = Problem(f"more than {MOST_FINDINGS:,} of its fields are unknown or wrong")

_STOP_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": MAX_STOP},
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP},
            "maxItems": MAX_STOPS,
        },
    ]
}


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Deadline = Annotated[float, Field(le=LAST_SECOND)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
MetaKey = Annotated[str, Field(min_length=1, max_length=64)]
MetaValue = Annotated[str, Field(max_length=512)]
S = TypeVar("S", bound=Strict)
_OBJECT = TypeAdapter(dict[str, Any], config=ConfigDict(allow_inf_nan=False))


class JobRequest(Strict):
    """A prompt to complete: exactly one of prompt and messages.

    prompt is one user turn through the model's chat template, or the text as it stands with raw.
    """

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}]}
    )

    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: Messages | None = None
    raw: bool = False
    model: Annotated[str, Field(min_length=1, max_length=MAX_MODEL)] | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    temperature: float = Field(0.0, ge=0, le=MAX_TEMPERATURE)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, lt=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=0, lt=SEED_LIMIT)
    stop: Annotated[
        list[Stop],
        Field(max_length=MAX_STOPS, fail_fast=True),
        BeforeValidator(_listed),
        WithJsonSchema(_STOP_SCHEMA),
    ] = Field([])
    stop_token_ids: list[TokenId] = Field([], max_length=MAX_STOPS)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[TokenKey, Bias] = Field(
        {}, max_length=MAX_BIASES, json_schema_extra={"additionalProperties": False}
    )
    logprobs: int | None = Field(None, ge=0, le=20)
    return_token_ids: bool = Field(
        False,
        description="The result has `token_ids`: as many as `completion_tokens`, an end token included.",
    )
    ignore_eos: bool = False
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(min_length=1, max_length=MAX_TOOLS)] | None = Field(
        None,
        description="Functions that the model may call, shown to it by its own chat template, or in the "
        "system's message where that has no place for them.",
    )
    tool_choice: ToolChoice = Field(
        "auto",
        description="auto: text or calls. required: one call or more. A named function: one call of it. "
        "none: the model is not shown the tools.",
    )
    parallel_tool_calls: bool = Field(True, description="false: at most one call in an answer.")
    chat_template_kwargs: dict[str, Any] = Field(
        {}, description="Further variables of the chat template, as `enable_thinking`."
    )
    decoding: Decoding = Field(
        Decoding.AUTO,
        description="auto drafts tokens wherever that is measured to pay; normal never does; medusa drafts "
        "at every step with the model's draft heads, for comparison: code no_heads where it has none.",
    )
    acceptance: Acceptance = Field(
        Acceptance.EXACT,
        description="exact: drafted tokens stand only where plain decoding would have chosen them, at any "
        "temperature. typical is lossy: they stand when likely enough; faster at a high temperature.",
    )
    priority: Priority = Priority.INTERACTIVE
    deadline: Deadline | None = None
    webhook: JobWebhook | None = None
    metadata: dict[MetaKey, MetaValue] = Field({}, max_length=MAX_METADATA)
    response: SkipJsonSchema[ResponseOrigin | None] = None  # of /v1/responses alone

    @model_validator(mode="after")
    def _one_input(self) -> JobRequest:
        if (self.prompt is None) == (self.messages is None):
            raise wrong("give exactly one of prompt and messages", "prompt")
        if self.raw and self.prompt is None:
            raise wrong("raw needs a prompt, not messages", "raw")
        if self.raw and self.tools is not None:
            raise wrong("raw text has no place for tools, a chat template has", "tools")
        return self

    @model_validator(mode="after")
    def _known_tool(self) -> JobRequest:
        if self.tool_choice in ("auto", "none"):
            return self
        if self.tools is None:
            raise wrong("needs tools", "tool_choice")
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            if all(tool.function.name != name for tool in self.tools):
                raise wrong("names none of the tools", "tool_choice")
        return self

    def sent(self) -> dict[str, Any]:
        """The fields that the caller set, ready for JSON."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)

    def fixed(self, default_max_tokens: int) -> dict[str, Any]:
        """sent() with max_tokens and seed filled in, so that a second attempt gives the same text."""
        return {"max_tokens": default_max_tokens, "seed": random_seed(), **self.sent()}


def parse(body: bytes, kind: type[S]) -> S:
    """The request in a body; raises InvalidRequest with the code and the field at fault."""
    try:
        return kind.model_validate_json(_text(body))
    except ValidationError as error:
        raise invalid_body(error) from None


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; raises InvalidRequest."""
    try:
        return _OBJECT.validate_json(_text(body))
    except ValidationError as error:
        raise invalid_body(error) from None


def has_too_many_values(body: bytes) -> bool:
    """Whether JSON holds more values than MAX_VALUES, nested ones included; takes linear time.

    Parsing such JSON blocks all threads of the process, and takes up to 50 times its size in memory.
    """
    if _most_values(body) <= MAX_VALUES:
        return False
    most_strings = 2 * MAX_VALUES  # every value may have a name
    bare, strings = STRING.subn(b"", body, most_strings + 1)
    return strings > most_strings or _most_values(bare) > MAX_VALUES


def _most_values(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _text(body: bytes) -> str:
    if has_too_many_values(body):
        raise InvalidRequest(f"the body: {TOO_MANY}", code=TOO_MANY_VALUES)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the body is not valid UTF-8: byte {error.start} cannot be decoded"
        raise InvalidRequest(message, code="invalid_utf8") from None


def invalid_body(error: ValidationError) -> InvalidRequest:
    """Convert pydantic's error: the first problem of the body."""
    if error.error_count() > MOST_FINDINGS:
        return invalid_request(TOO_MUCH_WRONG)
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['ctx']['error']}", code="malformed_json")
    return invalid_request(problem(first))


def invalid_request(found: Problem) -> InvalidRequest:
    """Convert a problem into the error that the gateway raises."""
    message = str(found) if found.field else f"the body: {found.message}"
    return InvalidRequest(message, code=found.code, param=found.field)


def check_deadline(deadline: float | None) -> None:
    """Raise InvalidRequest for a deadline that has passed. Repeats of an earlier request skip this check."""
    if deadline is not None and deadline <= time.time():
        raise invalid_request(Problem("must be in the future, in Unix seconds", "deadline"))


def read_job(job: Mapping[str, Any]) -> JobRequest | list[Problem]:
    """The validated job, or all its validation problems."""
    try:
        return JobRequest.model_validate_json(json.dumps(job))
    except ValidationError as error:
        if error.error_count() > MOST_FINDINGS:
            return [TOO_MUCH_WRONG]
        return [problem(item) for item in error.errors(include_url=False, include_input=False)]


def job_problems(job: Mapping[str, Any]) -> list[Problem]:
    """Return only the validation problems, empty for a valid job."""
    found = read_job(job)
    return found if isinstance(found, list) else []


def problem(item: ErrorDetails) -> Problem:
    """Convert one of pydantic's error entries."""
    if item["type"] == "json_invalid":  # json.dumps wrote the text, so only these two errors are possible
        deep = "recursion" in item["ctx"]["error"]
        return Problem(TOO_DEEP if deep else HALF_PAIR, code="invalid_json_line")
    at_fault = item.get("ctx", {}).get("param")
    path = ".".join(str(part) for part in (*item["loc"], at_fault) if part is not None)
    if item["type"] == "extra_forbidden":
        return Problem("there is no such field", path, UNKNOWN_FIELD)
    message = item["msg"]
    return Problem(message[0].lower() + message[1:], path or None)
