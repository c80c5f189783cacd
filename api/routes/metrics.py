"""`/metrics`: Prometheus metrics of the whole system, from any gateway.

Includes the queues in Redis, the metrics that the live workers store there, and this gateway's own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

import redis
from anyio import move_on_after
from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from api.requests.threads import run_in_threadpool
from api.service.dependencies import Gateway, GatewayDep
from api.service.model_routing import View
from tasks.base.errors import FileStoreUnavailable, StoreUnavailable
from tasks.base.telemetry.metrics import ProcessMetrics
from tasks.store.jobs import JobStore
from tasks.store.metrics_store import MetricsStore
from tasks.store.queue_stats import QueueStats, Waiting, queue_stats

log = logging.getLogger(__name__)
router = APIRouter(tags=["system"])

FREE_BYTES_S = 1.0  # timeout for the free space of the file store: a slow one must not delay the rest
NONE_WAITING = Waiting(0, 0.0)
NO_WINDOWS = {"queued": 0, "running": 0}


@router.get("/metrics", response_class=Response)
async def metrics(gateway: GatewayDep) -> Response:
    """Metrics of queues, workers and this gateway in Prometheus' format; without Redis only the last."""
    families = [*await run_in_threadpool(_redis_families, gateway), *await _file_store_families(gateway)]
    registry = CollectorRegistry()
    registry.register(_Families([*families, *ProcessMetrics.own("gateway", "").families]))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Families(Collector):
    """Metric families, of which those with the same name are merged."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families: dict[str, Metric] = {}
        for family in families:
            known = self._families.setdefault(family.name, family)
            if known is not family:
                known.samples += family.samples

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def _redis_families(gateway: Gateway) -> Iterator[Metric]:
    """The metrics from Redis; only medusaq_redis_up if it is unavailable."""
    store = gateway.store
    try:
        now, view = queue_stats(store.db), gateway.view()
        families = [
            *_queues(now),
            *_models(now, view),
            *_workers(MetricsStore(store.db).read()),
            *_memory(store),
        ]
    except StoreUnavailable as error:
        log.warning("metrics without the queues and the workers: %s", error)
        families = None
    yield _gauge("medusaq_redis_up", "Whether Redis answers this gateway", float(families is not None))
    yield from families or ()


def _queues(now: QueueStats) -> Iterator[Metric]:
    yield _gauges("medusaq_jobs", "Job records that are kept, by status", "status", now.jobs)
    ended = CounterMetricFamily("medusaq_jobs_ended", "Jobs that have ended, by status", labels=("status",))
    for status, count in now.ended.items():
        ended.add_metric((status,), count)
    told = "Lines of batches that have ended, by how they did; refused: when their file was read"
    lines = CounterMetricFamily("medusaq_batch_lines_ended", told, labels=("outcome",))
    for outcome, count in now.lines_ended.items():
        lines.add_metric((outcome,), count)
    yield from (ended, lines)
    yield _gauges("medusaq_queue_jobs", "Jobs and lines that wait for a worker", "priority", now.waiting)
    oldest = "How long the oldest of them has waited"
    yield _gauges("medusaq_queue_oldest_seconds", oldest, "priority", now.oldest_s)
    yield _gauge("medusaq_queue_held_jobs", "Jobs held back for their owner's share", now.deferred)
    unsent = "Lines of batches that are to be sent to workers and were not yet"
    yield _gauge("medusaq_batch_lines_waiting", unsent, now.lines)
    yield _gauge("medusaq_bulk_outstanding_jobs", "Bulk jobs sent to workers, not ended", now.in_flight)
    yield _gauge("medusaq_batches_active", "Batches that have not ended", now.batches)
    yield _gauge("medusaq_batches_led", "Whether an io worker works on batches", float(now.has_leader))
    late = "How long ago the webhook that waits longest should have been sent"
    yield _gauge("medusaq_webhooks_due_seconds", late, now.webhooks_due_s)


def _models(now: QueueStats, view: View) -> Iterator[Metric]:
    """Metrics by model: served, announced and queued ones, not arbitrary names from requests."""
    waiting = "Jobs that wait for a worker of this model alone, those of medusaq_queue_jobs among them"
    jobs = GaugeMetricFamily("medusaq_model_queue_jobs", waiting, labels=("model", "priority"))
    oldest = "How long the oldest of them has waited"
    ages = GaugeMetricFamily("medusaq_model_queue_oldest_seconds", oldest, labels=("model", "priority"))
    told = "Windows of batch lines, by their model, which is empty where any worker may run them"
    windows = GaugeMetricFamily("medusaq_batch_windows", told, labels=("model", "status"))
    for model in sorted({"", *view.served, *now.models, *now.windows}):
        for status, count in now.windows.get(model, NO_WINDOWS).items():
            windows.add_metric((model, status), count)
    models = sorted({*view.served, *now.models})
    for model in models:
        for priority in now.waiting:
            queue = now.models.get(model, {}).get(priority, NONE_WAITING)
            jobs.add_metric((model, priority), queue.jobs)
            ages.add_metric((model, priority), queue.oldest_s)
    alive = {model: len(view.able(model)) for model in models}
    yield from (jobs, ages, windows)
    yield _gauges("medusaq_model_workers", "Live workers of this model", "model", alive)


def _workers(workers: list[ProcessMetrics]) -> Iterator[Metric]:
    """The metrics of the workers, and their number."""
    alive = dict.fromkeys(("worker", "io"), 0)
    for each in workers:
        alive[each.service] = alive.get(each.service, 0) + 1
        yield from each.labelled()
    yield _gauges("medusaq_workers", "Live workers, by kind", "service", alive)


def _memory(store: JobStore) -> Iterator[Metric]:
    try:
        memory = store.db.redis.info("memory")
    except redis.ResponseError as error:  # some hosted servers forbid INFO
        log.debug("no metrics of Redis's memory: %s", error)
        return
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis: {error}") from error
    yield _gauge("medusaq_redis_memory_used_bytes", "Memory that Redis uses", memory["used_memory"])
    limit = "Memory that Redis may use, 0 for no limit"
    yield _gauge("medusaq_redis_memory_max_bytes", limit, memory.get("maxmemory", 0))


async def _file_store_families(gateway: Gateway) -> list[Metric]:
    free = None
    with move_on_after(FREE_BYTES_S):
        try:
            free = await gateway.in_file_thread(gateway.files.objects.free_bytes, abandon=True)
        except FileStoreUnavailable as error:
            log.warning("metrics without the file store: %s", error)
    if free is None:
        return []
    return [_gauge("medusaq_file_store_free_bytes", "Room left in the file store's folder", free)]


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=value)


def _gauges(name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family
