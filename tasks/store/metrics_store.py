"""Where workers leave their figures, and gateways find them: nothing need reach a worker from outside."""

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

LEAVE_S = 2.0  # between two times: several for each look of Prometheus
KEPT_S = 3 * LEAVE_S  # figures of a silent worker


class MetricsStore:
    """In Redis: one key for each worker, which dies with its time to live, and the set of them."""

    def __init__(self, database: Database) -> None:
        self._redis = database.redis
        self._members = f"{database.prefix}figures"
        self._prefix = f"{database.prefix}figures:"

    def leave(self, figures: ProcessMetrics) -> None:
        """Put them there, in place of the worker's earlier ones. Raises StoreUnavailable."""
        with answering(), self._redis.pipeline() as pipe:
            pipe.set(self._prefix + figures.worker, figures.to_json(), px=round(KEPT_S * 1000))
            pipe.sadd(self._members, figures.worker)
            pipe.execute()

    def remove(self, worker: str) -> None:
        """What a worker left. Raises StoreUnavailable."""
        with answering(), self._redis.pipeline() as pipe:
            pipe.delete(self._prefix + worker)
            pipe.srem(self._members, worker)
            pipe.execute()

    def read(self) -> list[ProcessMetrics]:
        """Those of the live workers; forgets the silent ones. Raises StoreUnavailable."""
        with answering():
            workers = sorted(self._redis.smembers(self._members))
            found = self._redis.mget([self._prefix + worker for worker in workers]) if workers else []
            if gone := [worker for worker, text in zip(workers, found, strict=True) if not text]:
                self._redis.srem(self._members, *gone)
        return [ProcessMetrics.from_json(text) for text in found if text]


class MetricsReporter:
    """Leaves the figures of this process all the while, and shows them itself where a port is set.

    start() and stop() belong to the worker's life.
    """

    def __init__(self, settings: Settings, database: Database, service: str, worker: str) -> None:
        self._board = MetricsStore(database)
        self._server = MetricsServer(settings, service, worker)
        self._service, self._worker = service, worker
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="figures", daemon=True)

    def start(self) -> None:
        self._server.start()
        self._thread.start()

    def stop(self) -> None:
        """End the threads, and take the figures away."""
        self._server.stop()
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._board.remove(self._worker)
        except StoreUnavailable as error:
            log.debug("figures die by themselves: %s", error)

    def _loop(self) -> None:
        while True:
            try:
                self._board.leave(ProcessMetrics.own(self._service, self._worker))
            except StoreUnavailable as error:
                log.debug("figures wait: %s", error)  # the heartbeat has said so already
            except Exception:
                log.exception("the figures of this worker cannot be given")
            if self._stopping.wait(LEAVE_S):
                return
