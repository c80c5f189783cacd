"""Sends the Celery message of a job, by name: the sender needs no engine."""

from __future__ import annotations

from celery import Celery
from kombu.exceptions import KombuError
from redis import RedisError

from tasks.errors import PublishFailed
from tasks.job import Job, Priority, preview
from tasks.queues import GENERATE, QUEUES, make_app
from tasks.settings import Settings


class Publisher:
    """Thread-safe. Fails within a few redis_timeout_s, never hangs."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    @classmethod
    def connect(cls, settings: Settings) -> Publisher:
        return cls(make_app(settings))

    def publish(self, job_id: str, priority: Priority, shown: str) -> None:
        """Queue a message; `shown` is what Flower lists as its argument. Raises PublishFailed."""
        try:
            self._app.send_task(
                GENERATE,
                args=(job_id,),
                task_id=job_id,
                queue=QUEUES[priority],
                argsrepr=repr(shown),
                kwargsrepr="{}",
                ignore_result=True,
            )
        except (KombuError, RedisError, OSError) as error:
            raise PublishFailed(f"the message of {job_id} could not be sent: {error}") from error

    def publish_job(self, job: Job) -> None:
        self.publish(job.id, job.priority, preview(job.request))

    def close(self) -> None:
        self._app.close()
