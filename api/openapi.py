"""The OpenAPI document: FastAPI's own, plus common responses and the bodies that routes parse themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from api.middleware.auth import METRICS, PUBLIC
from api.requests.schemas import ErrorBody
from api.routes.batch_preview import PreviewRequest
from api.routes.batches import BatchRequest, RetryRequest
from api.routes.comparison import GenerateRequest
from tasks.schema.job_request import JobRequest

DESCRIPTION = """
Sends prompts through a language model: one at a time as [jobs](#/jobs) or through OpenAI's endpoints, and by
the thousand as [batches](#/batches) of files and tables. The [console](/) uses this API and nothing else.

With API keys, every request has `Authorization: Bearer KEY` and sees only what this key has made. Errors are
`{"error": {"message", "type", "param", "code"}}`; `param` names the field or header that is wrong.
"""
GROUPS = {
    "OpenAI": "Online answers, whole or as a stream, in OpenAI's format: its clients work unchanged.",
    "jobs": "Single prompts that wait in a queue, with their state, their events and their result.",
    "files": "Uploaded files, and those that batches write.",
    "batches": "Files of requests, or tables with a template, that run beside interactive jobs.",
    "normal and medusa": "Decoding with and without draft tokens, side by side.",
    "webhooks": "HTTP requests that the gateway sends when a job or a batch ends.",
    "system": "Models, health and metrics.",
}
_CHAT = {"messages": [{"role": "user", "content": "Name three rivers of Africa."}], "max_tokens": 60}
_FILE_ID = "file_0123456789abcdef0123456789abcdef"
_TABLE = {
    "input_file_id": _FILE_ID,
    "endpoint": "/v1/chat/completions",
    "template": "Is this review positive or negative? {{ review }}",
    "schema": {
        "type": "object",
        "properties": {"mood": {"type": "string", "enum": ["positive", "negative"]}},
        "required": ["mood"],
    },
}
# Of the bodies, by method and path: name and value.
EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("post", "/v1/jobs"): {
        "a prompt": {"prompt": "Write a haiku about rain.", "max_tokens": 40},
        "a conversation with metadata": {**_CHAT, "metadata": {"project": "rivers"}},
    },
    ("post", "/v1/chat/completions"): {
        "a question": _CHAT,
        "the same as a stream": {**_CHAT, "stream": True},
    },
    ("post", "/v1/completions"): {"a text to go on with": {"prompt": "Once upon a time", "max_tokens": 40}},
    ("post", "/v1/batches"): {
        "a file of requests": {"input_file_id": _FILE_ID, "endpoint": "/v1/chat/completions"},
        "a table with a template": _TABLE,
    },
    ("post", "/v1/batches/preview"): {
        "the first rows": {"input_file_id": _FILE_ID, "rows": 5, "count": True}
    },
}
REF = "#/components/schemas/{model}"
BODIES: list[tuple[type[BaseModel], JsonSchemaMode]] = [
    (JobRequest, "validation"),
    (GenerateRequest, "validation"),
    (BatchRequest, "validation"),
    (PreviewRequest, "validation"),
    (RetryRequest, "validation"),
    (ErrorBody, "serialization"),
]
# Responses that any endpoint can give.
COMMON_RESPONSES = {
    "401": "The API key is missing or invalid",
    "403": "The gateway has no API keys, and the request came from a page of another site",
    "404": "The object does not exist, or belongs to another API key",
    "413": "The body is over the limit",
    "429": "A limit of the API key or of the queue is reached: see Retry-After",
    "500": "An internal error",
    "503": "Redis is unavailable, or no worker is alive: see Retry-After",
}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, which is generated once and cached."""
    if app.openapi_schema is None:
        groups = [{"name": name, "description": text} for name, text in GROUPS.items()]
        schema = get_openapi(
            title=app.title, version=app.version, description=DESCRIPTION, tags=groups, routes=app.routes
        )
        _, extra = models_json_schema(BODIES, ref_template=REF)
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {}).update(extra["$defs"])
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}]
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                _complete(path, operation)
                if examples := EXAMPLES.get((method, path)):
                    content = operation["requestBody"]["content"]["application/json"]
                    content["examples"] = {name: {"value": value} for name, value in examples.items()}
        app.openapi_schema = schema
    return app.openapi_schema


def _complete(path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    error = {"application/json": {"schema": {"$ref": REF.format(model="ErrorBody")}}}
    if "422" in responses:  # FastAPI's error schema, which this gateway does not use
        responses["422"] = {"description": "A parameter is invalid", "content": error}
    if path in PUBLIC or path == METRICS:
        operation["security"] = [] if path in PUBLIC else [{}, {"key": []}]
        return
    for status, description in COMMON_RESPONSES.items():
        responses.setdefault(status, {"description": description, "content": error})
