"""`/metrics`: all there is to see of the system, for Prometheus, whichever gateway it asks.

The queues as Redis has them, the figures that every live worker left there, and those of this gateway itself.
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

FREE_BYTES_S = 1.0  # a file store that does not say its free space so soon must not keep the rest back
NOBODY_WAITS = Waiting(0, 0.0)


@router.get("/metrics", response_class=Response)
async def metrics(gateway: GatewayDep) -> Response:
    """Queues, workers and this gateway, in the text format of Prometheus; without Redis the last of them."""
    families = [*await run_in_threadpool(_of_redis, gateway), *await _of_files(gateway)]
    registry = CollectorRegistry()
    registry.register(_Page([*families, *ProcessMetrics.own("gateway", "").families]))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Page(Collector):
    """Families as they come, those of one name put together."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families: dict[str, Metric] = {}
        for family in families:
            known = self._families.setdefault(family.name, family)
            if known is not family:
                known.samples += family.samples

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def _of_redis(gateway: Gateway) -> Iterator[Metric]:
    """All that is in Redis; nothing but the word that it is away when it is."""
    store = gateway.store
    try:
        now, view = queue_stats(store.db), gateway.view()
        found = [
            *_queues(now),
            *_models(now, view),
            *_workers(MetricsStore(store.db).read()),
            *_memory(store),
        ]
    except StoreUnavailable as error:
        log.warning("metrics without the queues and the workers: %s", error)
        found = None
    yield _gauge("medusaq_redis_up", "Whether Redis answers this gateway", float(found is not None))
    yield from found or ()


def _queues(now: QueueStats) -> Iterator[Metric]:
    yield _gauges("medusaq_jobs", "Job records that are kept, by status", "status", now.jobs)
    ended = CounterMetricFamily("medusaq_jobs_ended", "Jobs that have ended, by status", labels=("status",))
    for status, count in now.ended.items():
        ended.add_metric((status,), count)
    yield ended
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
    """Of each that is served or announced, and each that jobs wait for: no name that only a request gave."""
    waiting = "Jobs that wait for a worker of this model alone, those of medusaq_queue_jobs among them"
    jobs = GaugeMetricFamily("medusaq_model_queue_jobs", waiting, labels=("model", "priority"))
    oldest = "How long the oldest of them has waited"
    ages = GaugeMetricFamily("medusaq_model_queue_oldest_seconds", oldest, labels=("model", "priority"))
    models = sorted({*view.served, *now.models})
    for model in models:
        for priority in now.waiting:
            queue = now.models.get(model, {}).get(priority, NOBODY_WAITS)
            jobs.add_metric((model, priority), queue.jobs)
            ages.add_metric((model, priority), queue.oldest_s)
    alive = {model: len(view.able(model)) for model in models}
    yield from (jobs, ages)
    yield _gauges("medusaq_model_workers", "Live workers of this model", "model", alive)


def _workers(workers: list[ProcessMetrics]) -> Iterator[Metric]:
    """Their families, and how many workers there are."""
    alive = dict.fromkeys(("worker", "io"), 0)
    for each in workers:
        alive[each.service] = alive.get(each.service, 0) + 1
        yield from each.labelled()
    yield _gauges("medusaq_workers", "Live workers, by kind", "service", alive)


def _memory(store: JobStore) -> Iterator[Metric]:
    try:
        memory = store.db.redis.info("memory")
    except redis.ResponseError as error:  # a hosted server may refuse
        log.debug("no figures of Redis's memory: %s", error)
        return
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis: {error}") from error
    yield _gauge("medusaq_redis_memory_used_bytes", "Memory that Redis uses", memory["used_memory"])
    limit = "Memory that Redis may use, 0 for no limit"
    yield _gauge("medusaq_redis_memory_max_bytes", limit, memory.get("maxmemory", 0))


async def _of_files(gateway: Gateway) -> list[Metric]:
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
