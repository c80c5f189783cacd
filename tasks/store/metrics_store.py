"""Metrics of workers in Redis, where gateways read them: Prometheus need not reach the workers."""

from __future__ import annotations

import logging
import threading

from tasks.base.errors import StoreUnavailable
from tasks.base.settings import Settings
from tasks.base.telemetry.metrics import ProcessMetrics
from tasks.base.telemetry.metrics_server import MetricsServer
from tasks.store.database import Database
from tasks.store.scripts import answering

log = logging.getLogger(__name__)

PUBLISH_S = 2.0  # between writes: several for each scrape of Prometheus
TTL_S = 3 * PUBLISH_S  # of the metrics of a worker that stopped writing


class MetricsStore:
    """One Redis key for each worker, with a time to live, and a set of their names."""

    def __init__(self, database: Database) -> None:
        self._redis = database.redis
        self._members = f"{database.prefix}figures"
        self._prefix = f"{database.prefix}figures:"

    def write(self, metrics: ProcessMetrics) -> None:
        """Replace what the worker wrote before. Raises StoreUnavailable."""
        with answering(), self._redis.pipeline() as pipe:
            pipe.set(self._prefix + metrics.worker, metrics.to_json(), px=round(TTL_S * 1000))
            pipe.sadd(self._members, metrics.worker)
            pipe.execute()

    def remove(self, worker: str) -> None:
        """Remove the metrics of a worker. Raises StoreUnavailable."""
        with answering(), self._redis.pipeline() as pipe:
            pipe.delete(self._prefix + worker)
            pipe.srem(self._members, worker)
            pipe.execute()

    def read(self) -> list[ProcessMetrics]:
        """The metrics of live workers; drops expired ones from the set. Raises StoreUnavailable."""
        with answering():
            workers = sorted(self._redis.smembers(self._members))
            found = self._redis.mget([self._prefix + worker for worker in workers]) if workers else []
            if gone := [worker for worker, text in zip(workers, found, strict=True) if not text]:
                self._redis.srem(self._members, *gone)
        return [ProcessMetrics.from_json(text) for text in found if text]


class MetricsReporter:
    """Writes the metrics of this process every PUBLISH_S, and serves /metrics itself where a port is set.

    start() and stop() belong to the worker's life.
    """

    def __init__(self, settings: Settings, database: Database, service: str, worker: str) -> None:
        self._metrics = MetricsStore(database)
        self._server = MetricsServer(settings, service, worker)
        self._service, self._worker = service, worker
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="metrics", daemon=True)

    def start(self) -> None:
        self._server.start()
        self._thread.start()

    def stop(self) -> None:
        """End the threads and remove the metrics from Redis."""
        self._server.stop()
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._metrics.remove(self._worker)
        except StoreUnavailable as error:
            log.debug("metrics are left to expire: %s", error)

    def _loop(self) -> None:
        while True:
            try:
                self._metrics.write(ProcessMetrics.own(self._service, self._worker))
            except StoreUnavailable as error:
                log.debug("metrics are not written: %s", error)  # the heartbeat has said so already
            except Exception:
                log.exception("the metrics of this worker cannot be collected")
            if self._stopping.wait(PUBLISH_S):
                return
