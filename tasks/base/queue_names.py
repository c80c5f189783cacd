"""The names of the Celery queues, and of the channel on which Flower hears of messages.

Each model has queues of its own, medusaq.interactive.NAME and medusaq.bulk.NAME; those without a name hold
what any worker may run. tasks/store/lua/lib/queues.lua makes the same names.
"""

from __future__ import annotations

from urllib.parse import quote

from tasks.base.settings import Settings
from tasks.records.job import Priority

GENERATE = "medusaq.generate"  # the task's name: part of the wire format
QUEUES = {Priority.INTERACTIVE: "medusaq.interactive", Priority.BULK: "medusaq.bulk"}
IO_QUEUE = "medusaq.io"


def queue_of(priority: Priority, model: str = "") -> str:
    """The name of a model's queue; model "" gives the queue of jobs that any worker may run.

    The model's name is percent-encoded, so that two models never share a queue.
    """
    if not model:
        return QUEUES[priority]
    return f"{QUEUES[priority]}.{quote(model, safe='')}"


def list_key(settings: Settings, priority: Priority, model: str = "") -> str:
    """The Redis list that holds the waiting messages of a queue."""
    return settings.key_prefix + queue_of(priority, model)


def sent_channel(prefix: str, database: int) -> str:
    """The channel of Celery's task-sent events; kombu numbers it by the database."""
    return f"{prefix}/{database}.celeryev/task.sent"
