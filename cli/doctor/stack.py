"""Checks of the running system: file store, workers, restarts and models."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.doctor.findings import Finding, fail, ok, warn
from cli.doctor.machine import free_space
from cli.stack.state_file import running_models, running_restarts
from cli.stack.swap_policy import Phase
from common.units import size
from tasks.base.errors import FileStoreUnavailable, SettingsError, StoreUnavailable
from tasks.base.settings import Settings
from tasks.batches.store import BatchStore
from tasks.files.base import S3
from tasks.files.factory import folder_of, make_store
from tasks.store.jobs import JobStore
from tasks.store.queue_stats import queue_stats
from tasks.store.workers import Registry

MEND_FILES = "make the place in MEDUSAQ_FILES writable for this user, or name another"


def files(settings: Settings) -> Iterator[Finding]:
    """Check an object store by writing, reading and deleting an object, and a folder by its permissions."""
    if not settings.files.startswith(S3):
        yield _folder(settings.files)
        return
    name = f"doctor/{uuid.uuid4().hex}"
    try:
        store = make_store(settings.files)
    except SettingsError as error:
        what, _, how = str(error).rpartition(": ")
        yield fail("file store", what, how)
        return
    try:
        with store.open_new(name) as new:
            new.write(b"written")
        with store.open(name) as written:
            whole = written.read() == b"written"
        store.delete(name)
    except FileStoreUnavailable as error:
        yield fail("file store", f"{settings.files} cannot be written: {error}", MEND_FILES)
        return
    finally:
        store.close()
    if not whole:
        yield fail("file store", f"{settings.files} returned other content than was written", MEND_FILES)
    else:
        yield ok("file store", f"{settings.files} stores and returns objects")


def _folder(url: str) -> Finding:
    """That of a file store, which the first upload makes. Nothing is written into it."""
    root = folder_of(url).absolute()
    made = next(place for place in (root, *root.parents) if place.exists())
    if made.is_dir() and os.access(made, os.W_OK | os.X_OK):
        return free_space("file store", shutil.disk_usage(made).free, url)
    what = f"{url} cannot be written: {made} is {'not writable' if made.is_dir() else 'no folder'}"
    return fail("file store", what, MEND_FILES)


def workers(settings: Settings) -> Iterator[Finding]:
    """Check for live model workers and io workers."""
    store = JobStore(settings)
    try:
        live = Registry(store.db, settings.worker_ttl_s).live()
        waits = queue_stats(store.db).models
        led = BatchStore(store.db).has_leader()
    except StoreUnavailable:  # reported by the check of Redis
        return
    finally:
        store.close()
    models = sorted({worker.model for worker in live})
    if not live:
        yield warn("model workers", "none is alive: jobs are accepted and wait", "start one: medusaq worker")
    else:
        slots = sum(worker.slots for worker in live)
        yield ok("model workers", f"{len(live)} alive, {slots} slots, {', '.join(models)}")
    if waiting := sorted(set(waits) - set(models)):
        what = f"jobs wait for {', '.join(waiting)}, which no live worker serves"
        yield warn("models", what, f"start one: medusaq worker --model {waiting[0]}, or cancel the jobs")
    if led:
        yield ok("io worker", "one works on batches")
    else:
        what = "none is alive: batches wait, and jobs of lost workers are not put back"
        yield warn("io worker", what, "start one: medusaq io")


def restarts(state_dir: Path) -> Iterator[Finding]:
    """Services of a running `medusaq up` that crashed, and have not been healthy since."""
    for one in running_restarts(state_dir):
        mend = (
            "see its log; a prompt that crashes workers is given up after MEDUSAQ_MAX_ATTEMPTS as worker_lost"
        )
        yield warn(
            "restarts", one.status_line(time.time()), mend if "worker" in one.service else "see its log"
        )


def models(state_dir: Path) -> Iterator[Finding]:
    """The models of a `medusaq up` with several: their states and memory."""
    found = running_models(state_dir)
    if not found:
        return
    taken = sum(model["need"] for model in found["models"] if model["phase"] != Phase.PARKED)
    shown = ", ".join(_shown(model) for model in found["models"])
    yield ok("model memory", f"{size(taken)} of {size(found['budget'])}: {shown}")
    for model in found["models"]:
        if model["refusal"]:
            mend = "mend what the line names, and start `medusaq up` again"
            yield fail("model", f"{model['name']}: its jobs fail: {model['refusal']}", mend)


def _shown(model: dict[str, Any]) -> str:
    waiting = f", {model['waiting']} jobs wait" if model["waiting"] else ""
    return f"{model['name']} {model['phase']} ({size(model['need'])}{waiting})"
