"""The Celery application and its queues, from settings. tasks/app.py creates that of a worker process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from celery import Celery
from kombu import Queue
from kombu.utils.scheduling import priority_cycle, round_robin_cycle
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks.base.queue_names import IO_QUEUE, QUEUES, WINDOWS
from tasks.base.redis_tls import RedisOptions
from tasks.base.sentinel_url import SentinelUrl
from tasks.base.settings import Settings
from tasks.broker import transport
from tasks.records.job import Priority

IN_A_ROW = 8  # interactive messages that are read while bulk ones wait


# A worker that had enough windows looks so often whether it wants more. Redis 6 takes fractions of a second.
POLL_S = 0.25
RANKS = {QUEUES[Priority.INTERACTIVE]: 0, QUEUES[Priority.BULK]: 1, QUEUES[WINDOWS]: 1}


class InteractiveFirst(priority_cycle):  # type: ignore[misc]  # kombu has no types
    """Polls queues of interactive jobs before those of bulk jobs, and the queues of each kind in turn.

    After IN_A_ROW interactive messages a bulk one goes first, so that more interactive jobs than a worker can
    read keep no bulk job waiting for ever. Windows, which are much work in one message, and jobs are polled
    while wants_windows() and wants_jobs() say so.

    kombu's own "priority" cycle keeps the order it is given, which for Redis is that of a set, thus
    random in each process; its "sorted" cycle would put bulk first.
    """

    wants_windows: ClassVar[staticmethod[[], bool]] = staticmethod(lambda: True)  # of this process
    wants_jobs: ClassVar[staticmethod[[], bool]] = staticmethod(lambda: True)
    asked_at = 0.0  # on the monotonic clock: kombu has the order with each request for a message
    _in_a_row = 0

    def consume(self, n: int) -> Sequence[str]:
        self.asked_at = time.monotonic()
        bulk_first = self._in_a_row >= IN_A_ROW
        windows, jobs = self.wants_windows(), self.wants_jobs()
        names = [name for name in self.items[:n] if (windows if _is_of(name, QUEUES[WINDOWS]) else jobs)]
        return sorted(names, key=_rank, reverse=bulk_first)  # stable: the turns stay

    def rotate(self, last_used: str) -> str:
        self._in_a_row = self._in_a_row + 1 if _rank(last_used) == 0 else 0
        return round_robin_cycle.rotate(self, last_used)  # type: ignore[no-any-return]


def _rank(name: str) -> int:
    return next((rank for queue, rank in RANKS.items() if _is_of(name, queue)), len(RANKS))


def _is_of(name: str, queue: str) -> bool:
    """Whether it is this queue, or that of a model."""
    return name == queue or name.startswith(f"{queue}.")


def add_queue(app: Celery, name: str) -> Queue:
    """The application's queue of this name, which is added if it is new."""
    queues = app.amqp.queues
    return queues[name] if name in queues else queues.add(Queue(name))


def make_app(settings: Settings) -> Celery:
    """A Celery application that works for the stack of these settings."""
    transport.register()
    app = Celery("medusaq", set_as_current=False, events="tasks.broker.task_events:WholeEvents")
    app.conf.update(
        **_broker(settings),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # no limit: the worker waits until Redis is back
        broker_connection_timeout=RedisOptions.of(settings.redis_url).timeout_s,
        broker_channel_error_retry=True,  # Redis may reject writes for a while: no replica, a full disk
        task_queues=[Queue(name) for name in (*QUEUES.values(), IO_QUEUE)],
        task_default_queue=QUEUES[Priority.INTERACTIVE],
        task_create_missing_queues=False,
        task_serializer="json",
        accept_content=["json"],
        event_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        task_acks_late=True,
        worker_consumer="tasks.broker.wakeable_consumer:WakingConsumer",
        worker_concurrency=settings.concurrency,
        worker_prefetch_multiplier=1,
        worker_enable_prefetch_count_reduction=False,  # JobIntake bounds them, after a lost connection too
        worker_send_task_events=True,
        worker_soft_shutdown_timeout=settings.drain_s,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # the lease decides whether they count
        worker_redirect_stdouts=False,
    )
    return app


def _broker(settings: Settings) -> dict[str, Any]:
    """Celery's options for the connection to Redis."""
    redis = RedisOptions.of(settings.redis_url)
    timeouts = {
        "socket_timeout": redis.timeout_s,
        "socket_connect_timeout": redis.timeout_s,
        "socket_keepalive": True,
    }
    options = {
        "global_keyprefix": settings.key_prefix,
        # By name: workers report their settings as JSON, and Flower asks for them.
        "queue_order_strategy": "tasks.broker.celery_app:InteractiveFirst",
        "priority_steps": [0],  # each priority has its own queues
        "polling_interval": POLL_S,  # for which kombu waits for a message in one request
        **timeouts,
    }
    found, url = SentinelUrl.of(redis.address), redis.address
    if found is not None:
        asking = found.finder_options(timeouts | redis.tls)
        asking["retry"] = Retry(NoBackoff(), 0)  # the next Sentinel is asked instead
        options |= {"master_name": found.service, "sentinel_kwargs": asking}
        url = found.broker_url()
    return {"broker_url": url, "broker_use_ssl": redis.tls or None, "broker_transport_options": options}
