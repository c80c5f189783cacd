"""The FastAPI application. `create_app` is the factory that uvicorn serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from api import batches, error_handlers, events, files, generate, jobs, metrics, online, system
from api.batches import BatchRequest
from api.gateway import Gateway
from api.generate import GenerateRequest
from api.http_figures import HttpFigures
from api.http_traces import HttpTraces
from api.limits import BodyLimit
from api.uploads import FORM_BYTES
from tasks.errors import SettingsError
from tasks.files import make_store
from tasks.requests import JobRequest
from tasks.settings import Settings, get_settings, is_loopback
from tasks.tracing import begin

TITLE = "medusaq"
VERSION = "1"
REF = "#/components/schemas/{model}"


def create_app(settings: Settings | None = None) -> FastAPI:
    """The gateway for these settings; raises SettingsError when they would open it to everyone.

    Or when the file store they name needs a package that is not installed.
    """
    chosen = settings or get_settings()
    check_bind(chosen)
    objects = make_store(chosen.files)
    tracing = begin("medusaq-gateway")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = Gateway(chosen, objects, tracing)
        app.state.gateway = gateway
        gateway.waiter.start()
        yield
        await gateway.abandon()
        await gateway.waiter.stop()
        gateway.close()
        tracing.close()

    app = FastAPI(title=TITLE, version=VERSION, lifespan=lifespan)
    app.include_router(jobs.router)
    app.include_router(batches.router)
    app.include_router(files.router)
    app.include_router(events.router)
    app.include_router(online.router)
    app.include_router(generate.router)
    app.include_router(system.router)
    app.include_router(metrics.router)
    uploads = {("POST", files.PATH): chosen.max_file_bytes + FORM_BYTES}
    app.add_middleware(BodyLimit, max_bytes=chosen.max_body_bytes, other=uploads)
    app.add_middleware(HttpFigures)
    if tracing.on:
        app.add_middleware(HttpTraces, tracing=tracing)
    error_handlers.install(app, chosen.retry_after_s)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app


def check_bind(settings: Settings) -> None:
    """Raise SettingsError for a host beyond loopback: there are no API keys yet."""
    if settings.allow_open or is_loopback(settings.host):
        return
    raise SettingsError(
        f"MEDUSAQ_HOST: {settings.host} is reachable from other machines and the gateway has no API keys; "
        "use 127.0.0.1, or set MEDUSAQ_ALLOW_OPEN=1 behind a proxy that checks who calls"
    )


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document plus the bodies that routes read by themselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        bodies: list[tuple[type[BaseModel], JsonSchemaMode]] = [
            (JobRequest, "validation"),
            (GenerateRequest, "validation"),
            (BatchRequest, "validation"),
        ]
        _, extra = models_json_schema(bodies, ref_template=REF)
        document.setdefault("components", {}).setdefault("schemas", {}).update(extra["$defs"])
        app.openapi_schema = document
    return app.openapi_schema
