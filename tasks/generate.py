"""The model worker: claims a job, runs it through the engine, writes its end.

The only file of this folder that imports the engine. Loaded by the model worker alone:
`celery -A tasks.app worker -P threads -I tasks.generate -Q medusaq.interactive,medusaq.bulk`.
Once the model is loaded, the queues of its name are added to these.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

from celery import signals
from celery.exceptions import Ignore, Reject
from celery.worker import state as worker_state

from engine import (
    Acceptance,
    Completion,
    Decoding,
    EngineClosed,
    EngineConfig,
    EngineError,
    EngineService,
    FinishReason,
    HeadsLoadError,
    Request,
    RequestRefused,
    SamplingParams,
    TokenLogprob,
    response_grammar,
)
from engine.named_models import Register
from engine.refusing import FACTORY as REFUSING
from tasks import tracing
from tasks.app import app, settings
from tasks.consumer import WakingConsumer
from tasks.errors import JobFailed, JobNotFound, StoreUnavailable
from tasks.figure_board import FigureReporter
from tasks.figures import REGISTRY
from tasks.heartbeat import TAKES_TURNS, Heartbeat, Running
from tasks.job import Job, Priority, Status, result_line
from tasks.logs import about
from tasks.openai_answers import may_call_tools
from tasks.publish import Publisher
from tasks.queues import GENERATE, QUEUES, add_queue, queue_of
from tasks.readiness import tell_ready
from tasks.registry import Registry, WorkerInfo
from tasks.room import Room
from tasks.settings import Settings
from tasks.store import Claim, JobStore, Refusal, Unsent, new_token
from tasks.token_stream import TokenStream
from tasks.worker_figures import EngineCollector, observe_job

log = logging.getLogger(__name__)

EXIT_MODEL = 3  # the model cannot load: starting again would not help
EXIT_ENGINE_LOST = 1
INTERNAL = "an internal error, which the worker's log describes"
SWITCH_INTERVAL_S = 0.0005  # the engine's thread must get the GIL back promptly from the task threads
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 2.0  # a Redis that is back is found within this
ENGINE_PRIORITY = {Priority.INTERACTIVE: 0, Priority.BULK: 1}
STATUS = {
    FinishReason.STOP: Status.SUCCEEDED,
    FinishReason.LENGTH: Status.SUCCEEDED,
    FinishReason.CANCELLED: Status.CANCELLED,
    FinishReason.EXPIRED: Status.EXPIRED,
}

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


class ModelWorker:
    """One engine and the jobs it runs; run() is called by as many threads as Celery has."""

    def __init__(self, settings: Settings, engine: EngineService, model: str) -> None:
        """model: the name under which it is served."""
        self._settings = settings
        self._engine = engine
        self.model = model
        self._store = JobStore(settings)
        self._publisher = Publisher(app)
        self._room = Room()
        self._started_at = time.time()
        self._host = socket.gethostname()
        self.id = f"{self._host}:{os.getpid()}"
        self.heartbeat = Heartbeat(
            settings,
            self._store,
            self._publisher,
            Registry(self._store, settings.worker_ttl_s),
            cancel=self._cancel,
            describe=self._describe,
            watch=self._watch,
        )
        self._tokens = TokenStream(self._store, shown)
        self._tokens.start()
        REGISTRY.register(EngineCollector(model, self._figures))
        self._tracing = tracing.begin("medusaq-worker")
        self.reporter = FigureReporter(settings, self._store, "worker", self.id)

    def close(self) -> None:
        self.heartbeat.stop()
        self.reporter.stop()
        self._engine.close()
        self._tokens.close()
        self._tracing.close()
        self._store.close()

    def run(self, job_id: str) -> str:
        """Run one job to its end and return the line Flower shows; raises JobFailed for a failed one.

        Raises Ignore when the job is not this worker's (any more), Reject to put the message back.
        """
        if self.heartbeat.draining:
            raise Reject("this worker is shutting down", requeue=True)
        token = new_token()
        claim = self._insist(
            lambda: self._store.claim(job_id, self.id, token, last_alone=True, model=self.model)
        )
        if isinstance(claim, Unsent):
            log.info("%s waits for %r: this worker serves %r", job_id, claim.lane, self.model)
            self._publisher.try_all([claim])
            raise Ignore
        if claim is Refusal.DONE:
            return self._stored_end(job_id)
        if isinstance(claim, Refusal):
            log.info("dropped a message of %s: %s", job_id, claim)
            raise Ignore
        running = Running(claim, request_id=f"{job_id}.{claim.fence}", watched=claim.watched)
        self.heartbeat.add(running)
        try:
            left_s = None if claim.deadline is None else max(0.0, claim.deadline - time.time())
            with self._room.entered(claim.alone, lambda: running.given_up, left_s) as inside:
                if running.disowned or (inside and not self._begins(claim)):
                    raise Ignore
                return self._complete(running) if inside else self._end_unbegun(running)
        finally:
            self.heartbeat.remove(running)

    def _cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)
        self._room.look_again()  # it may still wait there

    def _end_unbegun(self, running: Running) -> str:
        status = Status.CANCELLED if running.cancelled else Status.EXPIRED
        self._finish(running, status)
        return unbegun(status)

    def _begins(self, claim: Claim) -> bool:
        return not claim.alone or self._insist(lambda: self._store.begin(claim.job_id, claim.fence))

    def _complete(self, running: Running) -> str:
        claim = running.claim
        try:
            self._check_model(claim.model)
            request = to_request(claim, running.request_id, self._settings)
            on_text = self._tokens.open(claim) if running.watched else None
            completion = self._engine.submit(request, on_text).result()
            result = to_result(claim, completion)
        except EngineClosed:
            self._engine_lost(claim)
            raise Ignore from None
        except Exception as error:
            failure = _failure(claim, error)
            self._finish(running, Status.FAILED, error=failure)
            self._tracing.job(claim, Status.FAILED, None, failure)
            raise JobFailed(f"{failure['code']}: {failure['message']}") from None
        status = STATUS[completion.finish_reason]
        self._finish(running, status, result=result)
        observe_job(claim.priority, result["timing"])
        self._tracing.job(claim, status, result, None)
        return result_line(result)

    def _finish(self, running: Running, status: Status, **end: dict[str, Any]) -> None:
        claim = running.claim
        written = not running.disowned and self._insist(
            lambda: self._store.finish(claim.job_id, claim.fence, status, model=self.model, **end)
        )
        if not written:
            log.warning("dropped the end of %s, attempt %d: not ours any more", claim.job_id, claim.attempts)
            raise Ignore

    def _watch(self, running: Running) -> bool:
        return self._engine.listen(running.request_id, self._tokens.open(running.claim))

    def _insist(self, call: Callable[[], T]) -> T:
        """Until Redis answers: the work is kept in memory, and a lease that ran out meanwhile refuses it."""
        pause = RETRY_FIRST_S
        while True:
            try:
                return call()
            except StoreUnavailable as error:
                if not self.heartbeat.pause(pause):
                    log.error("gave up on Redis while shutting down: %s", error)
                    raise Ignore from None
                pause = min(2 * pause, RETRY_MOST_S)

    def _stored_end(self, job_id: str) -> str:
        """What a repeated message of an ended job shows: the end that is stored, not another one."""
        try:
            job = self._insist(lambda: self._store.get(job_id))
        except JobNotFound:
            raise Ignore from None
        return end_line(job)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.model:
            message = f"this worker serves {self.model!r}, not {name!r}"
            raise RequestRefused(message, code="model_not_found", param="model")

    def _engine_lost(self, claim: Claim) -> None:
        """The job keeps its lease until that runs out, so that a prompt that kills engines is counted."""
        if not self.heartbeat.draining:
            log.error("the engine closed under %s: this worker stops", claim.job_id)
            self.heartbeat.drain()
            worker_state.should_stop = EXIT_ENGINE_LOST

    def _figures(self) -> dict[str, float]:
        info = self._engine.info
        return {"slots": info.slots, "kv_cells": info.kv_cells, **self._engine.metrics()}

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
            },
            metrics=self._engine.metrics(),
        )


def _failure(claim: Claim, error: Exception) -> dict[str, Any]:
    """What the record says of it."""
    if isinstance(error, EngineError):
        return {"code": error.code, "message": error.message, "param": error.param}
    log.error("%s cannot be run", claim.job_id, exc_info=error)
    return {"code": "internal_error", "message": INTERNAL, "param": None}


def to_request(claim: Claim, request_id: str, settings: Settings) -> Request:
    """The engine's request from the stored one; raises RequestRefused."""
    body = claim.request
    chosen = {name: body[name] for name in SAMPLING_FIELDS if body.get(name) is not None}
    chosen.setdefault("max_tokens", settings.default_max_tokens)
    for name in ("stop", "stop_token_ids"):
        chosen[name] = tuple(chosen.get(name, ()))
    if "acceptance" in chosen:
        chosen["acceptance"] = _member(Acceptance, chosen["acceptance"], "acceptance")
    chosen["grammar"] = response_grammar(body.get("response_format"))
    chosen["logit_bias"] = {int(token): bias for token, bias in chosen.get("logit_bias", {}).items()}
    messages = body.get("messages")
    return Request(
        id=request_id,
        sampling=SamplingParams(**chosen),
        prompt=body.get("prompt"),
        messages=None if messages is None else tuple({"content": "", **message} for message in messages),
        raw=body.get("raw") or False,
        priority=ENGINE_PRIORITY[claim.priority],
        deadline=claim.deadline,
        decoding=_member(Decoding, body.get("decoding") or Decoding.AUTO, "decoding"),
        tools=tuple(body["tools"]) if may_call_tools(body) else (),
    )


SAMPLING_FIELDS = tuple(SamplingParams.__dataclass_fields__)


def _member(kind: type[E], value: str, param: str) -> E:
    """The engine's own value; raises RequestRefused for one that only a newer gateway knows."""
    try:
        return kind(value)
    except ValueError:
        raise RequestRefused(f"{param} must be one of {', '.join(kind)}", param=param) from None


def _token(token_id: int, piece: bytes, logprob: float) -> dict[str, Any]:
    """bytes only where they are no text: then the token holds a part of a character."""
    text = piece.decode("utf-8", "replace")
    rest = {} if text.encode() == piece else {"bytes": list(piece)}
    return {"token_id": token_id, "token": text, "logprob": logprob, **rest}


def shown(token: TokenLogprob) -> dict[str, Any]:
    """A token of the engine as a result has it."""
    return {
        **_token(token.token_id, token.piece, token.logprob),
        "top": [_token(*alternative) for alternative in token.top],
    }


def to_result(claim: Claim, completion: Completion) -> dict[str, Any]:
    """The stored result. Its timing counts from the job's creation; tokens_per_s from the first attempt
    of the engine at this request, so without the queue."""
    timing = completion.timing
    waited = max(0.0, claim.claimed_at - claim.created_at)
    working = timing.total_s - timing.queue_s
    logprobs = completion.logprobs
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason.value,
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
            "total_tokens": completion.prompt_tokens + completion.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
        },
        "logprobs": None if logprobs is None else [shown(token) for token in logprobs],
        "timing": {
            "queue_s": waited + timing.queue_s,
            "first_token_s": None if timing.first_token_s is None else waited + timing.first_token_s,
            "total_s": waited + timing.total_s,
            "tokens_per_s": completion.completion_tokens / working if working > 0 else 0.0,
        },
        "speculation": {
            "steps": completion.steps,
            "tokens_per_step": completion.tokens_per_step,
            "sources": {
                name: {
                    "verified": drafted.verified,
                    "accepted": drafted.accepted,
                    "acceptance": drafted.accepted / drafted.verified if drafted.verified else None,
                }
                for name, drafted in completion.drafted.items()
            },
        },
    }


def end_line(job: Job) -> str:
    """The same line from a stored job; raises JobFailed for a failed one."""
    if job.error is not None:
        raise JobFailed(f"{job.error['code']}: {job.error['message']}")
    return unbegun(job.status) if job.result is None else result_line(job.result)


def unbegun(status: Status) -> str:
    return f"{status} before it ran"


def load_engine(settings: Settings) -> tuple[EngineService, str]:
    """Call the engine factory: what it gives, and the name of its model.

    Ends the process with one line and EXIT_MODEL when it cannot.
    """
    module, _, function = settings.engine_factory.partition(":")
    try:
        chosen = Register().resolve(settings.model)
        fields = {name: value for name, value in settings if name in EngineConfig.__dataclass_fields__}
        fields["model"] = chosen.path
        for name in ("heads", "chat_template"):
            if fields.get(name, "") is None:
                fields[name] = getattr(chosen, name)
        config = EngineConfig(**fields)
        service: EngineService = getattr(importlib.import_module(module), function)(config)
    except Exception as error:  # whatever it is, Celery would swallow it and wait for ever
        what = "the Medusa heads" if isinstance(error, HeadsLoadError) else "the model"
        print(f"error: {what} cannot be loaded: {error}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_MODEL) from None
    return service, chosen.name or service.info.name


_worker: ModelWorker | None = None
_consumer: WakingConsumer | None = None


@signals.worker_init.connect
def _start(**_: object) -> None:
    global _worker
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _worker = ModelWorker(settings, *load_engine(settings))
    for priority in Priority:  # beside the queues of the command line, which are open to all
        app.amqp.queues.select_add(add_queue(app, queue_of(priority, _worker.model)))
    if settings.engine_factory == REFUSING:  # other models can still run what is in those
        app.amqp.queues.deselect(list(QUEUES.values()))


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
        _worker.heartbeat.drain(
            settings.swap_drain_s if sig == "SIGINT" and TAKES_TURNS in os.environ else None
        )
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
    with about(job_id):
        return _worker.run(job_id)
