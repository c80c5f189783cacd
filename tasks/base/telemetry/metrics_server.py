"""A worker's own `/metrics` endpoint, served if MEDUSAQ_METRICS_ADDRESS is set.

Gateways read the metrics of workers from Redis, so they lack them while Redis is unavailable.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tasks.base.settings import Settings
from tasks.base.telemetry.metrics import ProcessMetrics

log = logging.getLogger(__name__)

CONNECTIONS = 8  # each has a thread; Prometheus needs one at a time
HEAD_BYTES = 16 * 1024  # of a request; Prometheus sends about 300
ANSWER_S = 10.0  # for the head of a request, and again for each part of the response


class OwnMetrics(Collector):
    """The metrics of this process, with the label worker, as gateways serve them."""

    def __init__(self, service: str, worker: str) -> None:
        self._service, self._worker = service, worker

    def collect(self) -> Iterator[Metric]:
        yield from ProcessMetrics.own(self._service, self._worker).labelled()


class _Handler(WSGIRequestHandler):
    timeout = ANSWER_S

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(io.BytesIO(self._head()))

    def _head(self) -> bytes:
        """The request line and headers; raises OSError for those that are too long or too slow."""
        head = b""
        give_up = time.monotonic() + ANSWER_S
        while b"\r\n\r\n" not in head:
            if len(head) >= HEAD_BYTES:
                self.connection.sendall(b"HTTP/1.0 431 Request Header Fields Too Large\r\n\r\n")
                raise OSError(f"headers over the limit of {HEAD_BYTES} bytes")
            self.connection.settimeout(max(0.001, give_up - time.monotonic()))
            received = self.connection.recv(HEAD_BYTES - len(head))
            if not received:
                raise ConnectionError("closed before the end of the headers")
            head += received
        self.connection.settimeout(ANSWER_S)
        return head

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: Prometheus sends a request every few seconds."""


class _Server(ThreadingWSGIServer):
    """Closes connections beyond CONNECTIONS at once."""

    request_queue_size = 128  # simultaneous connections must not wait for a retransmitted SYN

    def __init__(self, *args: Any, **options: Any) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the base class's
        log.info("metrics were not sent to %s", client_address[0], exc_info=log.isEnabledFor(logging.DEBUG))


class _Server6(_Server):
    address_family = socket.AF_INET6


class MetricsServer:
    """Listens on its own threads if the settings name a port."""

    def __init__(self, settings: Settings, service: str, worker: str) -> None:
        self._host, self._port = settings.metrics_host, settings.metrics_port
        self._registry = CollectorRegistry()
        self._registry.register(OwnMetrics(service, worker))
        self._server: ThreadingWSGIServer | None = None

    def start(self) -> None:
        """Log an error if the port cannot be bound: the worker goes on without it."""
        if not self._port:
            return
        kind = _Server6 if ":" in self._host else _Server
        app = make_wsgi_app(self._registry)
        try:
            self._server = make_server(self._host, self._port, app, kind, _Handler)
        except OSError as error:
            log.error("no metrics on %s:%d, gateways have them: %s", self._host, self._port, error)
            return
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
