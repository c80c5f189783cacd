"""The tasks that run jobs and windows in the model worker, and the start and end of that process.

Loaded by the model worker alone, as it imports the engine:
`celery -A tasks.app worker -P threads -I tasks.generate -Q medusaq.interactive,medusaq.bulk,medusaq.windows`.
Once the model is loaded, the queues of its name are added to these.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import os
import sys

from celery import signals
from celery.exceptions import Reject

from tasks.app import app, settings
from tasks.base.errors import JobFailed
from tasks.base.json_logs import about
from tasks.base.queue_names import GENERATE, QUEUES, WINDOW, queue_of
from tasks.base.readiness import tell_ready
from tasks.broker.celery_app import InteractiveFirst, add_queue
from tasks.broker.wakeable_consumer import WakingConsumer
from tasks.worker.engine_loader import load_engine, refuses_all
from tasks.worker.flower_line import log_ends_alone
from tasks.worker.heartbeat import TAKES_TURNS
from tasks.worker.intake import JobIntake
from tasks.worker.model_worker import ModelWorker

SWITCH_INTERVAL_S = 0.0005  # the engine's thread must get the GIL back promptly from the task threads

_worker: ModelWorker | None = None
_consumer: WakingConsumer | None = None
_jobs = JobIntake(settings.jobs_at_once)


@signals.worker_init.connect
def _start(**_: object) -> None:
    global _worker
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log_ends_alone()
    _worker = ModelWorker(settings, *load_engine(settings))
    InteractiveFirst.wants_windows = staticmethod(_worker.windows.wants)
    InteractiveFirst.wants_jobs = staticmethod(_jobs.wants)
    WakingConsumer.arrived = staticmethod(_arrived)
    WakingConsumer.connected = staticmethod(_connected)
    for kind in QUEUES:  # beside the queues of the command line, which are open to all
        app.amqp.queues.select_add(add_queue(app, queue_of(kind, _worker.model)))
    if refuses_all(settings):  # other models can still run what is in those
        app.amqp.queues.deselect(list(QUEUES.values()))


def _arrived(task: str, id: str) -> None:
    """Runs in the consumer's event loop, as does the next."""
    if task == GENERATE:
        _jobs.arrived(id)
    elif task == WINDOW and _worker is not None:
        _worker.windows.arrived(id)


def _connected() -> None:
    _jobs.reconnected()
    if _worker is not None:
        _worker.windows.reconnected()


@signals.worker_ready.connect
def _ready(sender: WakingConsumer, **_: object) -> None:
    global _consumer
    _consumer = sender
    tell_ready()
    if _worker is not None:
        _worker.heartbeat.start()
        _worker.reporter.start()


@signals.worker_shutting_down.connect
def _drain(sig: str = "SIGTERM", **_: object) -> None:
    """Runs in the signal handler, so it may only set numbers and write to the pipe."""
    if _worker is not None:
        swap = sig == "SIGINT" and TAKES_TURNS in os.environ
        _worker.heartbeat.drain(settings.swap_drain_s if swap else None)
    if _consumer is not None:
        _consumer.wake()


@signals.worker_shutdown.connect
def _stop(**_: object) -> None:
    if _worker is not None:
        _worker.close()


@app.task(name=GENERATE, throws=(JobFailed,))
def generate(job_id: str) -> str:
    """Run one job."""
    if _worker is None:
        raise Reject("no engine in this process", requeue=True)
    with about(job_id), _jobs.running(job_id):
        return _worker.run(job_id)


@app.task(name=WINDOW)
def window(window_id: str) -> str:
    """Run the lines of one window."""
    if _worker is None:
        raise Reject("no engine in this process", requeue=True)
    with about(window_id):
        return _worker.windows.run(window_id)
