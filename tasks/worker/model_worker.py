"""The model worker: claims a job, runs it through the engine, writes its end. Windows run beside them."""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from dataclasses import asdict
from functools import partial
from typing import Any

from celery.exceptions import Ignore, Reject
from celery.worker import state as worker_state

from engine import EngineClosed, EngineService
from tasks.base.errors import JobFailed, JobNotFound
from tasks.base.settings import Settings
from tasks.base.telemetry.metrics import REGISTRY
from tasks.base.telemetry.tracing_setup import begin
from tasks.records.claim import Claim
from tasks.records.job import Status, result_line
from tasks.store.jobs import ClaimRejection, JobStore, new_claim_id
from tasks.store.metrics_store import MetricsReporter
from tasks.store.windows import WindowStore
from tasks.store.workers import Registry, WorkerInfo
from tasks.worker.conversions import (
    STATUS,
    check_model,
    incomplete,
    shown,
    to_error,
    to_request,
    to_result,
)
from tasks.worker.exclusive_gate import ExclusiveGate
from tasks.worker.flower_line import stored_end_line, unbegun
from tasks.worker.heartbeat import Heartbeat, RunningJob
from tasks.worker.metrics import EngineCollector, observe_job
from tasks.worker.retrying import retry_until_available
from tasks.worker.token_stream import TokenStream
from tasks.worker.windows.runner import WindowRunner

log = logging.getLogger(__name__)

EXIT_ENGINE_LOST = 1


class ModelWorker:
    """One engine and the jobs it runs; run() is called by as many threads as Celery has."""

    def __init__(self, settings: Settings, engine: EngineService, model: str) -> None:
        """model: the name under which it is served."""
        self._settings = settings
        self._engine = engine
        self.model = model
        self._gate = ExclusiveGate()
        self._started_at = time.time()
        self._host = socket.gethostname()
        self.id = f"{self._host}:{os.getpid()}"
        # After a restart in a container another process has this id.
        self._store = JobStore(settings, name=f"{self.id}:{uuid.uuid4().hex[:8]}")
        self.heartbeat = Heartbeat(
            settings,
            self._store,
            Registry(self._store.db, settings.worker_ttl_s),
            worker_id=self.id,
            describe=self._describe,
            start_stream=self._start_stream,
        )
        self._tokens = TokenStream(self._store, shown)
        self._tokens.start()
        REGISTRY.register(EngineCollector(model, engine.info, engine.metrics))
        self._tracing = begin("medusaq-worker")
        self._retry = partial(retry_until_available, self.heartbeat.pause)
        self.windows = WindowRunner(
            settings,
            WindowStore(self._store.db),
            engine,
            self._gate,
            self.heartbeat,
            self._tracing,
            (self.id, model),
            engine_lost=self._engine_lost,
        )
        self.windows.start()
        self.reporter = MetricsReporter(settings, self._store.db, "worker", self.id)

    def close(self) -> None:
        self.heartbeat.stop()
        self.reporter.stop()
        self._engine.close()
        self.windows.close()
        self._tokens.close()
        self._tracing.close()
        self._store.close()

    def run(self, job_id: str) -> str:
        """Run one job to its end and return the line Flower shows; raises JobFailed for a failed one.

        Raises Ignore when the job is not this worker's (any more), Reject to put the message back.
        """
        if self.heartbeat.draining:
            raise Reject("this worker is shutting down", requeue=True)
        token = new_claim_id()
        claim = self._retry(
            lambda: self._store.claim(job_id, self.id, token, isolates=True, model=self.model)
        )
        if claim is ClaimRejection.DONE:
            return self._stored_end(job_id)
        if isinstance(claim, ClaimRejection):
            log.info("dropped a message of %s: %s", job_id, claim)
            raise Ignore
        request_id = f"{job_id}.{claim.fencing_token}"
        running = RunningJob(claim, request_id, self._store, self._cancel, streaming=claim.streaming)
        self.heartbeat.add(running)
        try:
            left_s = None if claim.deadline is None else max(0.0, claim.deadline - time.time())
            with self._gate.acquire(claim.isolated, lambda: running.given_up, left_s) as inside:
                if running.disowned or (inside and not self._begins(claim)):
                    raise Ignore
                return self._complete(running) if inside else self._end_unbegun(running)
        finally:
            self.heartbeat.remove(running)

    def _cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)
        self._gate.recheck()  # it may still wait there

    def _end_unbegun(self, running: RunningJob) -> str:
        status = Status.CANCELLED if running.cancelled else Status.EXPIRED
        self._finish(running, status)
        return unbegun(status)

    def _begins(self, claim: Claim) -> bool:
        return not claim.isolated or self._retry(
            lambda: self._store.start_isolated(claim.job_id, claim.fencing_token)
        )

    def _complete(self, running: RunningJob) -> str:
        claim = running.claim
        try:
            check_model(claim.model, self.model)
            request = to_request(claim, running.request_id, self._settings)
            on_text = self._tokens.open(claim) if running.streaming else None
            completion = self._engine.submit(request, on_text).result()
            if running.streaming:
                self._tokens.flush()
            result = to_result(claim, completion)
        except EngineClosed:
            self._engine_lost(claim.job_id)
            raise Ignore from None
        except Exception as error:
            failure = to_error(claim, error)
            self._finish(running, Status.FAILED, error=failure)
            self._tracing.job(claim, Status.FAILED, None, failure)
            raise JobFailed(failure["code"]) from None
        cut_off = incomplete(claim, completion)
        status = STATUS[completion.finish_reason] if cut_off is None else Status.FAILED
        end = {"result": result} if cut_off is None else {"result": result, "error": cut_off}
        self._finish(running, status, **end)
        observe_job(claim.priority, result["timing"])
        self._tracing.job(claim, status, result, cut_off)
        if cut_off is not None:
            raise JobFailed(cut_off["code"])
        return result_line(result)

    def _finish(self, running: RunningJob, status: Status, **end: dict[str, Any]) -> None:
        claim = running.claim
        written = not running.disowned and self._retry(
            lambda: self._store.finish(claim.job_id, claim.fencing_token, status, model=self.model, **end)
        )
        if not written:
            log.warning("dropped the end of %s, attempt %d: not ours any more", claim.job_id, claim.attempts)
            raise Ignore

    def _start_stream(self, running: RunningJob) -> bool:
        return self._engine.listen(running.request_id, self._tokens.open(running.claim))

    def _stored_end(self, job_id: str) -> str:
        """What a repeated message of an ended job shows: the end that is stored, not another one."""
        try:
            job = self._retry(lambda: self._store.get(job_id))
        except JobNotFound:
            raise Ignore from None
        return stored_end_line(job)

    def _engine_lost(self, under: str) -> None:
        """What ran keeps its lease until that runs out, so that a prompt that kills engines is counted."""
        if not self.heartbeat.draining:
            log.error("the engine closed under %s: this worker stops", under)
            self.heartbeat.drain()
            worker_state.should_stop = EXIT_ENGINE_LOST

    def _describe(self) -> WorkerInfo:
        info = self._engine.info
        return WorkerInfo(
            id=self.id,
            model=self.model,
            context_length=info.context_length,
            slots=info.slots,
            pid=os.getpid(),
            host=self._host,
            started_at=self._started_at,
            details={
                "kv_cells": info.kv_cells,
                "batch_invariant": info.batch_invariant,
                "quantization": info.quantization,
                "draft_sources": list(info.draft_sources),
                "measuring": info.measuring,
            },
            metrics={**asdict(self._engine.metrics()), "lines_per_s": self.windows.lines_per_s},
        )
