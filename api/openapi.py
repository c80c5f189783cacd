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
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, extra = models_json_schema(BODIES, ref_template=REF)
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {}).update(extra["$defs"])
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}]
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                _complete(path, operation)
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
