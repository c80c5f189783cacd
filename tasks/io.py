"""The io worker: batches, webhooks, the periodic reconciler, the removal of files whose time is over.

`celery -A tasks.app worker -B -P threads -c 4 -I tasks.io -Q medusaq.io`
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import time
from datetime import UTC, datetime, timedelta

from celery import signals
from celery.schedules import schedule
from prometheus_client import Counter

from tasks.app import app, settings
from tasks.batch_driver import BatchDriver
from tasks.errors import FileStoreUnavailable, SettingsError, StoreUnavailable
from tasks.figure_board import FigureReporter
from tasks.figures import REGISTRY
from tasks.file_keeper import FileKeeper
from tasks.file_records import FileRecords
from tasks.files import make_store
from tasks.publish import Publisher
from tasks.queues import DROP_FILES, IO_QUEUE, RECONCILE
from tasks.store import JobStore
from tasks.webhook_sender import WebhookSender

log = logging.getLogger(__name__)

EXPIRES_TICKS = 5  # ticks that pile up while the io worker is away are dropped: one does the work of all
DROP_FILES_TICKS = 5  # reconciliations for each look at the files: theirs is a time of days
PR_SET_PDEATHSIG = 1  # prctl(2)

RECONCILED = Counter(
    "medusaq_reconciled_jobs",
    "Jobs put back after their lease, given up as lost, expired in the queue, or sent to the queue again",
    ["outcome"],
    registry=REGISTRY,
)
OUTCOMES = ("requeued", "lost", "expired", "resent")
for _outcome in OUTCOMES:  # they are there before the first
    RECONCILED.labels(_outcome)


def _steady_now() -> datetime:
    """Goes on when the clock is set: by that, beat would rest for as long as it was put back."""
    return datetime.fromtimestamp(time.monotonic(), UTC)


def _every(seconds: float) -> schedule:
    return schedule(timedelta(seconds=seconds), nowfun=_steady_now)


app.conf.beat_schedule = {
    "reconcile": {
        "task": RECONCILE,
        "schedule": _every(settings.reconcile_s),
        "options": {"queue": IO_QUEUE, "expires": settings.reconcile_s * EXPIRES_TICKS},
    },
    # Beside the reconciler, not in it: a file store that is away may take a minute to say so.
    "drop_files": {
        "task": DROP_FILES,
        "schedule": _every(settings.reconcile_s * DROP_FILES_TICKS),
        "options": {"queue": IO_QUEUE, "expires": settings.reconcile_s * DROP_FILES_TICKS},
    },
}

_parent = os.getpid()
_store = JobStore(settings)
_publisher = Publisher(app)
try:
    _files = FileKeeper(make_store(settings.files), FileRecords(_store))
except SettingsError as error:
    raise SystemExit(f"error: {error}") from None
_batches: BatchDriver | None = None
_webhooks: WebhookSender | None = None
_reporter: FigureReporter | None = None


@signals.worker_ready.connect
def _start(**_: object) -> None:
    global _batches, _webhooks, _reporter
    _batches = BatchDriver(settings, _store, _publisher, _files)
    _batches.start()
    _webhooks = WebhookSender(settings, _store)
    _webhooks.start()
    _reporter = FigureReporter(settings, _store, "io", f"{socket.gethostname()}:{os.getpid()}")
    _reporter.start()


@signals.worker_shutdown.connect
def _stop(**_: object) -> None:
    if _batches is not None:
        _batches.stop()
    if _webhooks is not None:
        _webhooks.stop()
    if _reporter is not None:
        _reporter.stop()


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


@app.task(name=DROP_FILES, send_events=False, acks_late=False)
def drop_files() -> None:
    """Remove files that have expired, and what killed uploads left."""
    try:
        if removed := _files.drop_expired():
            log.info("files: %d removed", removed)
    except (FileStoreUnavailable, StoreUnavailable) as error:
        log.warning("files: removal skipped: %s", error)


def reconcile_once(store: JobStore, publisher: Publisher) -> None:
    """Passes until nothing is due; raises StoreUnavailable.

    All passes come before the first message: a list that is no longer empty would hide the other
    lost messages from the next pass.
    """
    waiting = publisher.waiting(store.lanes())
    passes = [store.reconcile(waiting)]
    while passes[-1].full:
        passes.append(store.reconcile(waiting))
    counts = [
        sum(column)
        for column in zip(*((p.requeued, p.lost, p.expired, p.resent) for p in passes), strict=True)
    ]
    for outcome, count in zip(OUTCOMES, counts, strict=True):
        RECONCILED.labels(outcome).inc(count)
    if any(counts):
        log.warning("reconcile: %d requeued, %d failed as lost, %d expired, %d messages sent again", *counts)
    publisher.try_all([unsent for done in passes for unsent in done.unsent])
