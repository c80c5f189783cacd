"""The OpenAPI document: FastAPI's, with what holds everywhere and the bodies that routes read themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from api.middleware.auth import METRICS, PUBLIC
from api.requests.schemas import ErrorBody
from api.routes.batches import BatchRequest
from api.routes.comparison import GenerateRequest
from tasks.schema.job_request import JobRequest

REF = "#/components/schemas/{model}"
BODIES: list[tuple[type[BaseModel], JsonSchemaMode]] = [
    (JobRequest, "validation"),
    (GenerateRequest, "validation"),
    (BatchRequest, "validation"),
    (ErrorBody, "serialization"),
]
# What stands before any endpoint: keys, other sites, the size of a body, rates, Redis, our own faults.
EVERYWHERE = {
    "401": "No API key, or none of this gateway's",
    "403": "Without keys: sent by a page of another site",
    "404": "There is no such thing, or it is another key's",
    "413": "The body is over the limit",
    "429": "The key, or the queue, has reached a limit: see Retry-After",
    "500": "An internal error",
    "503": "Redis, or a worker that is waited for, is away: see Retry-After",
}


def document(app: FastAPI) -> dict[str, Any]:
    """Made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, extra = models_json_schema(BODIES, ref_template=REF)
        components = made.setdefault("components", {})
        components.setdefault("schemas", {}).update(extra["$defs"])
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
        for path, operations in made["paths"].items():
            for operation in operations.values():
                _complete(path, operation)
        app.openapi_schema = made
    return app.openapi_schema


def _complete(path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    error = {"application/json": {"schema": {"$ref": REF.format(model="ErrorBody")}}}
    if "422" in responses:  # FastAPI's own shape, which ours replaces
        responses["422"] = {"description": "A parameter is wrong", "content": error}
    if path in PUBLIC or path == METRICS:
        operation["security"] = [] if path in PUBLIC else [{}, {"key": []}]
        return
    for status, description in EVERYWHERE.items():
        responses.setdefault(status, {"description": description, "content": error})
