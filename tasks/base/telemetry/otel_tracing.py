"""OpenTelemetry spans of requests and jobs. Imported only if tracing is configured.

    POST /v1/jobs            the request at the gateway
      job                    from queueing to its end
        queue                until the engine admitted it
        engine               until its end; an event at the first token

    window                   lines of a batch, from queueing to the last end

The record of a job holds the request's context, so a job that is run again stays in its trace. Windows come
from no request: each has its own trace.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tasks.base.telemetry.tracing import Answered, Tracing
from tasks.records.claim import Claim
from tasks.records.job import Status
from tasks.records.packed_line import parts
from tasks.records.window import WindowClaim

SERVER_ERROR = 500
CLOSE_S = 2.0  # for the remaining spans: a collector that never responds must not delay the exit
_propagator = TraceContextTextMapPropagator()


class Traced(Tracing):
    """Sends spans where OTEL_EXPORTER_OTLP_* says, sampled as OTEL_TRACES_SAMPLER says."""

    on = True

    def __init__(self, service: str) -> None:
        """service: the name under which spans are shown, unless OTEL_* gives another."""
        given = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        own = {SERVICE_VERSION: version("medusaq")} | ({} if given else {SERVICE_NAME: service})
        self._provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("medusaq")

    @contextmanager
    def request(self, method: str, path: str, headers: Mapping[str, str]) -> Iterator[Answered]:
        with self._tracer.start_as_current_span(
            method,
            context=_propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": path},
            record_exception=False,  # its text may contain user input
            set_status_on_exception=False,
        ) as span:

            def answered(route: str, status: int) -> None:
                span.update_name(f"{method} {route}")
                span.set_attributes({"http.route": route, "http.response.status_code": status})
                if status >= SERVER_ERROR:
                    span.set_status(StatusCode.ERROR)

            try:
                yield answered
            except Exception:
                span.set_status(StatusCode.ERROR)
                raise

    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        return carrier.get("traceparent", "")

    def job(
        self, claim: Claim, status: Status, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None
    ) -> None:
        admitted, ended = claim.claimed_at, time.time()
        first: float | None = None
        if result is not None:  # its times are relative to the job's creation, by the clock of Redis
            timing = result["timing"]
            admitted, ended = claim.created_at + timing["queue_s"], claim.created_at + timing["total_s"]
            first = None if timing["first_token_s"] is None else claim.created_at + timing["first_token_s"]
        parent = _propagator.extract({"traceparent": claim.traceparent}) if claim.traceparent else Context()
        job = self._tracer.start_span(
            "job", parent, SpanKind.CONSUMER, _of_claim(claim), start_time=_ns(claim.queued_at)
        )
        inside = trace.set_span_in_context(job, Context())
        queue = self._tracer.start_span("queue", inside, start_time=_ns(claim.queued_at))
        queue.end(_ns(max(claim.queued_at, admitted)))
        engine = self._tracer.start_span("engine", inside, start_time=_ns(admitted))
        if result is not None:
            engine.set_attributes(_of_result(result))
        if first is not None:
            engine.add_event("first token", timestamp=_ns(first))
        if error is not None:
            for span in (engine, job):
                span.set_status(StatusCode.ERROR, str(error["code"]))
        engine.end(_ns(ended))
        job.set_attribute("medusaq.job.status", status.value)
        job.end(_ns(ended))

    def window(self, claim: WindowClaim, count: int, statuses: Mapping[str, int], output_tokens: int) -> None:
        numbers = [parts(line).number for line in claim.lines[:count]]
        attributes: dict[str, str | int] = {
            "medusaq.batch.id": claim.batch_id,
            "medusaq.window.id": claim.window_id,
            "medusaq.window.attempt": claim.attempts,
            "medusaq.window.lines": count,
            "medusaq.window.first_line": min(numbers),
            "medusaq.window.last_line": max(numbers),
            "gen_ai.usage.output_tokens": output_tokens,
            **{f"medusaq.window.{status}": lines for status, lines in statuses.items()},
        }
        start = _ns(claim.queued_at)
        span = self._tracer.start_span("window", Context(), SpanKind.CONSUMER, attributes, start_time=start)
        span.end()

    def close(self) -> None:
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _of_claim(claim: Claim) -> dict[str, str | int]:
    batch = {"medusaq.batch.id": claim.batch_id} if claim.batch_id else {}
    return {
        "medusaq.job.id": claim.job_id,
        "medusaq.job.priority": claim.priority.value,
        "medusaq.job.attempt": claim.attempts,
        **batch,
    }


def _of_result(result: Mapping[str, Any]) -> dict[str, Any]:
    usage, speculation = result["usage"], result["speculation"]
    acceptance = {
        f"medusaq.acceptance.{source}": drafts["acceptance"]
        for source, drafts in speculation["sources"].items()
        if drafts["acceptance"] is not None
    }
    return {
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.response.finish_reasons": [result["finish_reason"]],
        "medusaq.cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "medusaq.steps": speculation["steps"],
        "medusaq.tokens_per_step": speculation["tokens_per_step"],
        **acceptance,
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
