"""A worker's own `/metrics`, where MEDUSAQ_METRICS_PORT asks for it.

Gateways have its figures from Redis, and so lack them while that is away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tasks.figures import Figures
from tasks.settings import Settings

log = logging.getLogger(__name__)


class OwnFigures(Collector):
    """Those of this process as gateways show them: with the worker's name."""

    def __init__(self, service: str, worker: str) -> None:
        self._service, self._worker = service, worker

    def collect(self) -> Iterator[Metric]:
        yield from Figures.own(self._service, self._worker).marked()


class FigureServer:
    """Listens where the settings name a port, on threads of its own."""

    def __init__(self, settings: Settings, service: str, worker: str) -> None:
        self._host, self._port = settings.metrics_host, settings.metrics_port
        self._registry = CollectorRegistry()
        self._registry.register(OwnFigures(service, worker))
        self._server: WSGIServer | None = None

    def start(self) -> None:
        """A port that cannot be had is no reason to leave the work."""
        if not self._port:
            return
        try:
            self._server, _ = start_http_server(self._port, self._host, self._registry)
        except OSError as error:
            log.error("no figures on %s:%d, gateways have them: %s", self._host, self._port, error)

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
