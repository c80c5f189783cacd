"""The io worker: the periodic reconciler.

`celery -A tasks.app worker -B -P threads -c 4 -I tasks.io -Q medusaq.io`
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys

from celery import signals

from tasks.app import app, settings
from tasks.errors import PublishFailed, StoreUnavailable
from tasks.publish import Publisher
from tasks.queues import IO_QUEUE, RECONCILE
from tasks.store import JobStore

log = logging.getLogger(__name__)

EXPIRES_TICKS = 5  # ticks that pile up while the io worker is away are dropped: one does the work of all
PR_SET_PDEATHSIG = 1  # prctl(2)

app.conf.beat_schedule = {
    "reconcile": {
        "task": RECONCILE,
        "schedule": settings.reconcile_s,
        "options": {"queue": IO_QUEUE, "expires": settings.reconcile_s * EXPIRES_TICKS},
    }
}

_parent = os.getpid()
_store = JobStore(settings)
_publisher = Publisher(app)


@signals.beat_embedded_init.connect
def _in_beat_process(**_: object) -> None:
    """Beat is a child process: keep its ticks out of Flower, and end it with a killed parent."""
    app.conf.task_send_sent_event = False
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != _parent:
            raise SystemExit


@app.task(name=RECONCILE, send_events=False, acks_late=False)
def reconcile() -> None:
    """Requeue, expire, resend and drop what is due."""
    try:
        reconcile_once(_store, _publisher)
    except StoreUnavailable as error:
        log.warning("reconcile skipped: %s", error)


def reconcile_once(store: JobStore, publisher: Publisher) -> None:
    """Passes until nothing is due; raises StoreUnavailable.

    All passes come before the first message: a list that is no longer empty would hide the other
    lost messages from the next pass.
    """
    passes = [store.reconcile()]
    while passes[-1].full:
        passes.append(store.reconcile())
    counts = [
        sum(column)
        for column in zip(*((p.requeued, p.lost, p.expired, p.resent) for p in passes), strict=True)
    ]
    if any(counts):
        log.warning("reconcile: %d requeued, %d failed as lost, %d expired, %d messages sent again", *counts)
    for unsent in (unsent for done in passes for unsent in done.unsent):
        try:
            publisher.publish(unsent.job_id, unsent.priority, unsent.preview)
        except PublishFailed as error:  # its time comes again after resend_after_s
            log.warning("%s", error)
