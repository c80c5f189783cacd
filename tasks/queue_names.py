"""The names of the Celery queues.

Each model has queues of its own, medusaq.interactive.NAME and medusaq.bulk.NAME; those without a name hold
what any worker may run.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from tasks.job import Priority
from tasks.settings import Settings

GENERATE = "medusaq.generate"  # the task's name: part of the wire format between gateway and workers
QUEUES = {Priority.INTERACTIVE: "medusaq.interactive", Priority.BULK: "medusaq.bulk"}
IO_QUEUE = "medusaq.io"
LONGEST_NAME = 200  # characters of a queue's name: RabbitMQ takes 255 bytes


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
