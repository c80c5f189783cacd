"""The Celery application and its queues, from settings. tasks/app.py makes the one of a worker process.

Each model has queues of its own, medusaq.interactive.NAME and medusaq.bulk.NAME; those without a name hold
what any worker may run.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from celery import Celery
from kombu import Queue
from kombu.utils.scheduling import priority_cycle, round_robin_cycle
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks.job import Priority
from tasks.redis_options import RedisOptions
from tasks.sentinel import SentinelUrl
from tasks.settings import Settings

GENERATE = "medusaq.generate"  # the task's name: part of the wire format between gateway and workers
QUEUES = {Priority.INTERACTIVE: "medusaq.interactive", Priority.BULK: "medusaq.bulk"}
IO_QUEUE = "medusaq.io"
LONGEST_NAME = 200  # characters of a queue's name: RabbitMQ takes 255 bytes

# Far above any run: leases recover a lost worker's jobs, and the shortest value of any peer wins.
VISIBILITY_TIMEOUT_S = 24 * 3600
# The record is stored before its message is sent and the reconciler sends it again: no reason to insist.
PUBLISH_RETRY = {"max_retries": 1, "interval_start": 0.0, "interval_step": 0.1, "interval_max": 0.1}


class InteractiveFirst(priority_cycle):  # type: ignore[misc]  # kombu has no types
    """Polls queues of interactive jobs before those of bulk ones, always, and of each kind all in turn.

    kombu's own "priority" cycle keeps the order it is given, which for Redis is that of a set, thus
    random in each process; its "sorted" cycle would put bulk first.
    """

    asked_at = 0.0  # on the monotonic clock: kombu has the order with each request for a message

    def consume(self, n: int) -> Sequence[str]:
        self.asked_at = time.monotonic()
        return sorted(self.items[:n], key=_rank)  # stable: the turns stay

    def rotate(self, last_used: str) -> str:
        return round_robin_cycle.rotate(self, last_used)  # type: ignore[no-any-return]


def _rank(name: str) -> int:
    of = [name == queue or name.startswith(f"{queue}.") for queue in QUEUES.values()]
    return of.index(True) if True in of else len(of)


def queue_of(priority: Priority, model: str = "") -> str:
    """The name of a queue. model: whose it is; "" is the queue of jobs that any worker may run.

    Two models never share one, whatever is in their names.
    """
    if not model:
        return QUEUES[priority]
    plain = quote(model, safe="")
    name = f"{QUEUES[priority]}.{plain}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(model.encode()).hexdigest()[:32]
    return f"{name[: LONGEST_NAME - len(digest) - 1]}!{digest}"  # no name that fits has a "!"


def list_key(settings: Settings, priority: Priority, model: str = "") -> str:
    """The Redis list that holds the waiting messages of a queue."""
    return settings.key_prefix + queue_of(priority, model)


def add_queue(app: Celery, name: str) -> Queue:
    """The queue of this name as the application declares and sends to it, from now on."""
    queues = app.amqp.queues
    return queues[name] if name in queues else queues.add(Queue(name))


def make_app(settings: Settings) -> Celery:
    """A Celery application that sends to, or works for, the stack of these settings."""
    app = Celery("medusaq", set_as_current=False, events="tasks.events:WholeEvents")
    app.conf.update(
        **_broker(settings),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # for ever: Redis comes back, and the queue is in it
        broker_connection_timeout=RedisOptions.of(settings.redis_url).timeout_s,
        broker_channel_error_retry=True,  # Redis refuses writes for a while: no replica, a full disk
        task_queues=[Queue(name) for name in (*QUEUES.values(), IO_QUEUE)],
        task_default_queue=QUEUES[Priority.INTERACTIVE],
        task_create_missing_queues=False,
        task_serializer="json",
        accept_content=["json"],
        event_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        task_acks_late=True,
        task_publish_retry=True,
        task_publish_retry_policy=PUBLISH_RETRY,
        task_send_sent_event=True,
        worker_consumer="tasks.consumer:WakingConsumer",
        worker_concurrency=settings.concurrency,
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        worker_soft_shutdown_timeout=settings.drain_s,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # they go on; the lease decides
        worker_redirect_stdouts=False,
    )
    return app


def over_redis(app: Celery) -> bool:
    """Whether the messages of this application wait in Redis."""
    return not app.conf.broker_url.startswith("amqp")


def _broker(settings: Settings) -> dict[str, Any]:
    """Where Celery's messages go, and how."""
    if settings.broker_url is not None:
        # The reduction ends on a task's thread, which then waits on the socket that the worker's loop reads:
        # after a restart of the broker the worker took nothing more.
        return {"broker_url": settings.broker_url, "worker_enable_prefetch_count_reduction": False}
    redis = RedisOptions.of(settings.redis_url)
    timeouts = {
        "socket_timeout": redis.timeout_s,
        "socket_connect_timeout": redis.timeout_s,
        "socket_keepalive": True,
    }
    options = {
        "global_keyprefix": settings.key_prefix,
        # By name: workers report their settings as JSON, and Flower asks for them.
        "queue_order_strategy": "tasks.queues:InteractiveFirst",
        "priority_steps": [0],  # our queues are the priorities
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
        **timeouts,
    }
    found, url = SentinelUrl.of(redis.address), redis.address
    if found is not None:
        asking = found.finder_options(timeouts | redis.tls) | {
            "retry": Retry(NoBackoff(), 0)
        }  # the next is asked
        options |= {"master_name": found.service, "sentinel_kwargs": asking}
        url = found.broker_url()
    return {"broker_url": url, "broker_use_ssl": redis.tls or None, "broker_transport_options": options}
