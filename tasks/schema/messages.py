"""Schemas of OpenAI's chat objects: messages, tools and the response format."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

MAX_TOOL_CALLS = 128  # of one message, as in the OpenAI API
Name = Annotated[str, Field(min_length=1, max_length=64)]
FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"
FunctionName = Annotated[str, Field(pattern=FUNCTION_NAME)]


class Strict(BaseModel):
    """Base of the schemas: rejects unknown fields, and values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def wrong(message: str, field: str) -> PydanticCustomError:
    """The error of one field, for validators of a whole object."""
    return PydanticCustomError("wrong_field", message, {"param": field})


class CalledFunction(Strict):
    """arguments is JSON text, as the model wrote it."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str


class ToolCall(Strict):
    """A call that the assistant made in an earlier turn."""

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"]
    function: CalledFunction


class Message(Strict):
    """One message of a conversation. Only an assistant's that calls tools may be without content."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    name: Name | None = None
    tool_calls: (
        Annotated[list[ToolCall], Field(min_length=1, max_length=MAX_TOOL_CALLS, fail_fast=True)] | None
    ) = None
    tool_call_id: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Message:
        if self.content is None and self.tool_calls is None:
            raise wrong("missing", "content")
        if self.tool_calls is not None and self.role != "assistant":
            raise wrong("only an assistant's message has them", "tool_calls")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise wrong("a message of role tool has one, and no other", "tool_call_id")
        return self


class Function(Strict):
    """A function that the model may call; parameters is its JSON Schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """OpenAI's function tool."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """The name of one of the tools."""

    name: FunctionName


class NamedTool(Strict):
    """OpenAI's choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


_NAMED = {
    "type": "object",
    "required": ["type", "function"],
    "additionalProperties": False,
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "additionalProperties": False,
            "properties": {"name": {"type": "string", "pattern": FUNCTION_NAME}},
        },
    },
}


def _tool_choice(value: object) -> object:
    if isinstance(value, str) and value in TOOL_CHOICES:
        return value
    try:
        return NamedTool.model_validate(value)
    except ValidationError:
        message = 'must be "auto", "none", "required" or {"type": "function", "function": {"name": NAME}}'
        raise PydanticCustomError("tool_choice", message) from None


TOOL_CHOICES = ("auto", "none", "required")
ToolChoice = Annotated[
    str | NamedTool,
    BeforeValidator(_tool_choice),
    WithJsonSchema({"anyOf": [{"enum": [*TOOL_CHOICES]}, _NAMED]}),
]


class JsonSchema(Strict):
    """A JSON Schema that the answer must satisfy, and a name for it."""

    name: FunctionName
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of the answer: text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_if_asked(self) -> ResponseFormat:
        if (self.json_schema is None) == (self.type == "json_schema"):
            raise wrong("goes with the type json_schema, and with no other", "json_schema")
        return self


class ResponseOrigin(Strict):
    """What an answer of the Responses API repeats of its request, and a job has no field for.

    instructed: whether the first message is its instructions, which a next request does not continue.
    """

    instructed: bool = False
    previous_response_id: Annotated[str, Field(max_length=64)] | None = None
    store: bool = True
