"""The names of the Celery queues, and of the channel on which Flower hears of messages.

Each model has queues of its own, medusaq.interactive.NAME, medusaq.bulk.NAME and medusaq.windows.NAME; those
without a name hold what any worker may run. tasks/store/lua/lib/queues.lua makes the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from tasks.base.settings import Settings
from tasks.records.job import Priority

GENERATE, WINDOW = "medusaq.generate", "medusaq.window"  # the tasks' names: part of the wire format
# Of jobs of each priority, and of windows: workers of earlier releases take no messages of those.
WINDOWS = "windows"
QUEUES: Mapping[str, str] = {
    Priority.INTERACTIVE: "medusaq.interactive",
    Priority.BULK: "medusaq.bulk",
    WINDOWS: "medusaq.windows",
}
IO_QUEUE = "medusaq.io"


def queue_of(kind: str, model: str = "") -> str:
    """The name of a model's queue; model "" gives the queue of what any worker may run. kind: of QUEUES.

    The model's name is percent-encoded, so that two models never share a queue.
    """
    if not model:
        return QUEUES[kind]
    return f"{QUEUES[kind]}.{quote(model, safe='')}"


def list_key(settings: Settings, kind: str, model: str = "") -> str:
    """The Redis list that holds the waiting messages of a queue."""
    return settings.key_prefix + queue_of(kind, model)


def sent_channel(prefix: str, database: int) -> str:
    """The channel of Celery's task-sent events; kombu numbers it by the database."""
    return f"{prefix}/{database}.celeryev/task.sent"
