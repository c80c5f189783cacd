"""The io worker: batches, webhooks, the periodic reconciler, the removal of files whose time is over.

`celery -A tasks.app worker -P threads -c 4 -I tasks.io -Q medusaq.io`

Celery starts and ends the process; the work is done on threads of its own, and no message asks for it.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import logging
import os
import socket

from celery import signals
from prometheus_client import Counter

from tasks.app import app, settings
from tasks.base.errors import FileStoreUnavailable, SettingsError, StoreUnavailable
from tasks.base.periodic import Periodic
from tasks.base.readiness import tell_ready
from tasks.base.telemetry.metrics import REGISTRY
from tasks.batches.leader import BatchLeader
from tasks.files.factory import make_store
from tasks.files.manager import FileManager
from tasks.files.records import FileRecords
from tasks.recovery.holder_watch import HolderWatch
from tasks.store.jobs import JobStore
from tasks.store.metrics_store import MetricsReporter
from tasks.webhooks.sender import WebhookSender

log = logging.getLogger(__name__)

DROP_FILES_TICKS = 5  # reconciliations for each look at the files: theirs is a time of days
# Messages of earlier releases that may still lie in the queue; they are answered by doing nothing.
EARLIER_TICKS = ("medusaq.reconcile", "medusaq.drop_files")

RECONCILED = Counter(
    "medusaq_reconciled_jobs",
    "Jobs put back after their lease, given up as lost, expired in the queue, or sent to the queue again",
    ["outcome"],
    registry=REGISTRY,
)
OUTCOMES = ("requeued", "lost", "expired", "resent")
for _outcome in OUTCOMES:  # they are there before the first
    RECONCILED.labels(_outcome)


_store = JobStore(settings)
try:
    _files = FileManager(make_store(settings.files), FileRecords(_store.db))
except SettingsError as error:
    raise SystemExit(f"error: {error}") from None
_holders = HolderWatch(_store.db)
_batches: BatchLeader | None = None
_webhooks: WebhookSender | None = None
_reporter: MetricsReporter | None = None


@signals.worker_ready.connect
def _start(**_: object) -> None:
    global _batches, _webhooks, _reporter
    _batches = BatchLeader(settings, _store, _files)
    _batches.start()
    _webhooks = WebhookSender(settings, _store.db)
    _webhooks.start()
    _reporter = MetricsReporter(settings, _store.db, "io", f"{socket.gethostname()}:{os.getpid()}")
    _reporter.start()
    for periodic in _periodic:
        periodic.start()
    tell_ready()


@signals.worker_shutdown.connect
def _stop(**_: object) -> None:
    for periodic in _periodic:
        periodic.stop()
    if _batches is not None:
        _batches.stop()
    if _webhooks is not None:
        _webhooks.stop()
    if _reporter is not None:
        _reporter.stop()


def reconcile() -> None:
    """Requeue, expire, resend and drop what is due."""
    try:
        reconcile_once(_store)
    except StoreUnavailable as error:
        log.warning("reconcile skipped: %s", error)


def find_killed_workers() -> None:
    """Requeue what they held."""
    try:
        if _holders.look():
            reconcile_once(_store)
    except StoreUnavailable as error:
        log.debug("no look for killed workers: %s", error)


def drop_files() -> None:
    """Remove files that have expired, and what killed uploads left."""
    try:
        if removed := _files.drop_expired():
            log.info("files: %d removed", removed)
    except (FileStoreUnavailable, StoreUnavailable) as error:
        log.warning("files: removal skipped: %s", error)


def _nothing() -> None:
    """This process has its own clock."""


for _name in EARLIER_TICKS:
    app.task(name=_name, send_events=False, acks_late=False)(_nothing)

# Threads, not messages: what brings lost messages back depends on none. Removal is beside the reconciler,
# not in it, because a file store that is away may take a minute to say so.
_periodic = (
    Periodic("reconcile", settings.reconcile_s, reconcile),
    Periodic("killed-workers", _holders.interval_s, find_killed_workers),
    Periodic("drop-files", settings.reconcile_s * DROP_FILES_TICKS, drop_files),
)


def reconcile_once(store: JobStore) -> None:
    """Passes until nothing is due; raises StoreUnavailable."""
    passes = [store.reconcile()]
    while passes[-1].full:
        passes.append(store.reconcile(passes[-1].empty))
    counts = [
        sum(column)
        for column in zip(*((p.requeued, p.lost, p.expired, p.resent) for p in passes), strict=True)
    ]
    for outcome, count in zip(OUTCOMES, counts, strict=True):
        RECONCILED.labels(outcome).inc(count)
    if any(counts):
        log.warning("reconcile: %d requeued, %d failed as lost, %d expired, %d messages sent again", *counts)
