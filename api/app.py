"""The FastAPI application. `create_app` is the factory that uvicorn serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import batches, error_handlers, events, files, generate, jobs, metrics, online, system, webhooks
from api.access import Access
from api.document import document
from api.gateway import Gateway
from api.http_figures import HttpFigures
from api.http_traces import HttpTraces
from api.limits import BodyLimit
from api.security_headers import SecurityHeaders, add_docs
from api.uploads import FORM_BYTES
from tasks.file_factory import make_store
from tasks.keys import check_bind
from tasks.readiness import tell_ready
from tasks.settings import Settings, get_settings
from tasks.tracing_setup import begin

TITLE = "medusaq"
VERSION = "1"


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
        gateway.open_requests.start()
        tell_ready()
        yield
        await gateway.abandon()
        await gateway.open_requests.stop()
        await gateway.waiter.stop()
        gateway.close()
        tracing.close()

    app = FastAPI(
        title=TITLE,
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect names the Host that the client sent
    )
    app.include_router(jobs.router)
    app.include_router(batches.router)
    app.include_router(files.router)
    app.include_router(events.router)
    app.include_router(online.router)
    app.include_router(generate.router)
    app.include_router(webhooks.router)
    app.include_router(system.router)
    app.include_router(metrics.router)
    uploads = {("POST", files.PATH): chosen.max_file_bytes + FORM_BYTES}
    app.add_middleware(BodyLimit, max_bytes=chosen.max_body_bytes, other=uploads)
    app.add_middleware(Access, settings=chosen)
    app.add_middleware(SecurityHeaders)
    add_docs(app)
    app.add_middleware(HttpFigures)
    if tracing.on:
        app.add_middleware(HttpTraces, tracing=tracing)
    error_handlers.install(app)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app
