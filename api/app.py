"""The FastAPI application. `create_app` is the factory that uvicorn serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api.console.pages import PAGES, add_console
from api.http import error_responses
from api.middleware.auth import Authentication
from api.middleware.body_limit import BodyLimit
from api.middleware.error_pages import ErrorPages
from api.middleware.metrics import HttpMetrics
from api.middleware.request_id import RequestId
from api.middleware.security_headers import SecurityHeaders, add_docs
from api.middleware.tracing import HttpTracing
from api.openapi import document
from api.routes import (
    batch_preview,
    batch_results,
    batches,
    comparison,
    files,
    job_events,
    jobs,
    metrics,
    system,
    webhooks,
)
from api.routes.openai import completions, responses
from api.service.dependencies import Gateway
from api.service.uploads import FORM_BYTES
from tasks.base.readiness import tell_ready
from tasks.base.settings import Settings, get_settings
from tasks.base.telemetry.tracing_setup import begin
from tasks.files.factory import make_store
from tasks.store.api_keys import check_bind

TITLE = "medusaq"
VERSION = "1"


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the gateway application.

    Raises SettingsError if the settings would expose an unprotected gateway to other machines, or if their
    file store needs a package that is not installed.
    """
    chosen = settings or get_settings()
    check_bind(chosen)
    objects = make_store(chosen.files)
    tracing = begin("medusaq-gateway")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = Gateway(chosen, objects, tracing)
        app.state.gateway = gateway
        gateway.job_events.start()
        gateway.open_requests.start()
        tell_ready()
        yield
        await gateway.abandon()
        await gateway.open_requests.stop()
        await gateway.job_events.stop()
        gateway.close()
        tracing.close()

    app = FastAPI(
        title=TITLE,
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the client's Host header, which is not trusted
    )
    app.include_router(jobs.router)
    app.include_router(batches.router)
    app.include_router(batch_preview.router)
    app.include_router(batch_results.router)
    app.include_router(files.router)
    app.include_router(job_events.router)
    app.include_router(completions.router)
    app.include_router(responses.router)
    app.include_router(comparison.router)
    app.include_router(webhooks.router)
    app.include_router(system.router)
    app.include_router(metrics.router)
    uploads = {("POST", files.PATH): chosen.max_file_bytes + FORM_BYTES}
    app.add_middleware(BodyLimit, max_bytes=chosen.max_body_bytes, other=uploads)
    app.add_middleware(Authentication, settings=chosen, pages=PAGES)
    app.add_middleware(ErrorPages)
    app.add_middleware(SecurityHeaders)
    add_docs(app)
    add_console(app)
    app.add_middleware(HttpMetrics)
    if tracing.on:
        app.add_middleware(HttpTracing, tracing=tracing)
    app.add_middleware(RequestId)
    error_responses.install(app)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app
