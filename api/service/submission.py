"""Submits jobs: checks a parsed body against the live workers and stores the job, which queues it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from api.http.errors import BadRequest, NoWorker, UnknownModel
from api.service.dependencies import WORKERS_AGE_S, Gateway
from api.service.model_routing import route
from tasks.base.errors import TargetRefused
from tasks.records.job import Decoding, Job, NewJob
from tasks.records.webhook import target_of
from tasks.schema.job_request import JobRequest, check_deadline
from tasks.store.workers import WorkerInfo


def submit(
    gateway: Gateway, body: JobRequest, owner: str, key: str | None = None, *, awaited: bool = False
) -> Job:
    """Store the job, which accepts it and sends its queue message. awaited: its end is waited for here.

    Raises ApiError, InvalidRequest, IdempotencyConflict and StoreUnavailable.
    """
    body_hash = "" if key is None else hash_of(body.sent())
    # A repeat skips the checks, which might fail by now.
    if (earlier := gateway.store.earlier(key, body_hash)) is not None:
        return earlier
    new = _checked(gateway, body, owner, online=False)
    waiter = gateway.job_events.id if awaited else ""
    return gateway.store.create(replace(new, idempotency_key=key, body_hash=body_hash, waiter=waiter))


def submit_all(
    gateway: Gateway,
    body: JobRequest,
    variants: Sequence[Mapping[str, Any]],
    owner: str,
    *,
    streaming: bool,
    keep_s: float | None,
) -> list[Job]:
    """Store all jobs of one online request or none, and send their queue messages.

    variants: see JobStore.create_all. streaming, keep_s: see NewJob. Raises the errors of submit().
    """
    new = _checked(gateway, body, owner, online=True)
    new = replace(new, streaming=streaming, waiter=gateway.job_events.id, keep_s=keep_s)
    return gateway.store.create_all(new, variants)


def _checked(gateway: Gateway, body: JobRequest, owner: str, *, online: bool) -> NewJob:
    """Check a body against the live workers, and make the job to store."""
    check_deadline(body.deadline)
    view, default = gateway.view(WORKERS_AGE_S), gateway.settings.default_model
    asked = gateway.settings.model_aliases.get(body.model or "", body.model) or None
    try:
        model = route(asked, default, view, online=online)
    except (NoWorker, UnknownModel):  # the cached view may be outdated
        view = gateway.view()
        model = route(asked, default, view, online=online)
    _check_against(view.able(model), body)
    if body.webhook is not None:
        check_target(gateway, body.webhook.url)
    return NewJob(
        request=body.fixed(gateway.settings.default_max_tokens),
        priority=body.priority,
        model=model,
        deadline=body.deadline,
        metadata=body.metadata,
        owner=owner,
        webhook=None if body.webhook is None else body.webhook.chosen(),
        traceparent=gateway.tracing.traceparent(),
    )


def check_target(gateway: Gateway, url: str) -> None:
    """Reject a webhook to a forbidden IP address, or to a service of ours. Names are checked at delivery."""
    target = target_of(url)
    try:
        gateway.guard.check_literal(target.host, target.port)
    except TargetRefused as error:
        raise BadRequest(f"webhook.url: {error}", param="webhook.url") from None


def hash_of(body: object) -> str:
    """Hash that detects a different body under the same idempotency key."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _check_against(able: Sequence[WorkerInfo], body: JobRequest) -> None:
    """Reject a job that no live worker of its model can run. With no live worker, the job is accepted."""
    longest = max((worker.context_length for worker in able), default=None)
    if longest is not None and body.max_tokens is not None and body.max_tokens > longest:
        message = f"max_tokens: {body.max_tokens} exceeds the model's context of {longest} tokens"
        raise BadRequest(message, param="max_tokens")
    if body.decoding is Decoding.MEDUSA and able and not any(worker.has_heads for worker in able):
        message = "decoding: 'medusa' needs draft heads, and no live worker has any for its model"
        raise BadRequest(message, code="no_heads", param="decoding")
