"""Sends the Celery messages of jobs by the task's name, so that the sender does not import the engine."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from celery import Celery
from kombu import Producer
from kombu.exceptions import KombuError
from redis import RedisError

from tasks.base.errors import PublishFailed
from tasks.base.queue_names import GENERATE, queue_of
from tasks.base.settings import Settings
from tasks.broker.celery_app import add_queue, make_app
from tasks.records.claim import QueueMessage
from tasks.records.job import Job, Priority

log = logging.getLogger(__name__)

MOST_AT_ONCE = 64  # messages of one round trip
FAILURES = (KombuError, RedisError, OSError)
CONNECTING = {
    "max_retries": 1,
    "interval_start": 0.0,
    "interval_step": 0.0,  # kombu: for six seconds
}


class Publisher:
    """Thread-safe. Every call ends within a few timeouts of Redis."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    @classmethod
    def connect(cls, settings: Settings) -> Publisher:
        return cls(make_app(settings))

    def publish(self, job_id: str, priority: Priority, shown: str, model_queue: str = "") -> None:
        """Queue a message; `shown` is what Flower lists as its argument. Raises PublishFailed."""
        self.publish_all([QueueMessage(job_id, priority, shown, model_queue)])

    def publish_all(self, messages: Sequence[QueueMessage]) -> None:
        """Queue messages in one round trip; raises PublishFailed if some of them may not be queued."""
        with self._lock:
            try:
                try:
                    self._send(messages)
                except FAILURES:  # perhaps the connection is stale: Redis may have been restarted
                    self._disconnect()
                    self._send(messages)
            except FAILURES as error:
                self._disconnect()
                ids = ", ".join(message.job_id for message in messages)
                raise PublishFailed(f"messages could not be sent ({ids}): {error}") from error

    def try_all(self, messages: Sequence[QueueMessage]) -> bool:
        """Queue messages up to the first failure, and return whether all were queued.

        The reconciler sends the rest.
        """
        try:
            for first in range(0, len(messages), MOST_AT_ONCE):
                self.publish_all(messages[first : first + MOST_AT_ONCE])
        except PublishFailed as error:
            log.warning("%s; the reconciler will send them", error)
            return False
        return True

    def close(self) -> None:
        with self._lock:
            self._disconnect()
        self._app.close()

    def _send(self, messages: Sequence[QueueMessage]) -> None:
        if self._connection is None:
            self._connection = _Connection(self._app)
        self._connection.send(messages)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Outbox:
    """Sends the messages of accepted jobs on its own thread, all that wait in one round trip.

    The reconciler sends the messages that fail, and those that wait when the process is killed.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._waiting: queue.SimpleQueue[QueueMessage | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="outbox", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue the job's message for the thread; does not block."""
        self._waiting.put(QueueMessage.of(job))

    def close(self) -> None:
        """Send the waiting messages up to the first failure, then end the thread."""
        self._closing.set()
        self._waiting.put(None)
        self._thread.join()

    def _loop(self) -> None:
        last = False
        while not last:
            taken = [self._waiting.get()]
            while len(taken) < MOST_AT_ONCE and not self._waiting.empty():
                taken.append(self._waiting.get())
            last = None in taken
            try:
                sent = self._publisher.try_all([message for message in taken if message is not None])
            except Exception:  # no error may end this thread
                log.exception("messages could not be sent; the reconciler will send them")
                sent = False
            last = last or (self._closing.is_set() and not sent)


class _Connection:
    """Makes Celery and kombu write their messages to one Redis pipeline.

    Otherwise they create a Redis client and wait for a response for every message, and again for its event
    for Flower: three quarters of the cost of publishing.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Any = app.connection_for_write(transport_options=CONNECTING)
        self._channel = self._connection.default_channel
        self._declared: set[str] = set()
        for name in list(app.amqp.queues):
            self._declare(name)
        self._producer = Producer(self._channel, auto_declare=False)

    def send(self, messages: Sequence[QueueMessage]) -> None:
        self._declare_for(messages)
        with self._channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipeline:
            acquire = self._channel.conn_or_acquire
            self._channel.conn_or_acquire = lambda _client=None: nullcontext(pipeline)
            try:
                for message in messages:
                    self._write(message)
            finally:
                self._channel.conn_or_acquire = acquire
            pipeline.execute()

    def _declare_for(self, messages: Sequence[QueueMessage]) -> None:
        """Declare the queues of models that are new: their workers may not have started yet."""
        for name in {queue_of(message.priority, message.model_queue) for message in messages}:
            self._declare(name)

    def _declare(self, name: str) -> None:
        if name not in self._declared:
            add_queue(self._app, name)(self._channel).declare()
            self._declared.add(name)

    def _write(self, message: QueueMessage) -> None:
        self._app.send_task(
            GENERATE,
            args=(message.job_id,),
            task_id=message.job_id,
            queue=queue_of(message.priority, message.model_queue),
            argsrepr=repr(message.preview),
            kwargsrepr="{}",
            ignore_result=True,
            producer=self._producer,
            retry=False,
        )

    def close(self) -> None:
        self._connection.close()
