"""Traces from the HTTP request through the queue to the engine, as a real collector gets them."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tasks.base.settings import Settings
from tasks.base.telemetry import tracing_setup
from tests.api.conftest import GatewayProcess
from tests.support.peers.collector import Collector, Span
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import ROOT, Workers, wait_until

SERVER = 2  # SPAN_KIND_SERVER of OTLP
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "swordfish"
CLOSE_LIMIT_S = 8.0


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def send_to(url: str, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture(scope="module")
def traced(
    collector: Collector, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway, a model worker and an io worker that send to the collector."""
    settings, folder = fast_settings(redis_server), tmp_path_factory.mktemp("traced")
    workers = Workers(folder)
    with ExitStack() as tools:
        tools.callback(workers.close)
        with pytest.MonkeyPatch.context() as patch:  # of the tests themselves nothing is sent
            send_to(collector.url, patch)
            workers.model(settings, env={"SCRIPTED_DRAFT_SOURCES": "medusa"})
            workers.io(settings)
            gateway = GatewayProcess(settings, folder)
        tools.callback(gateway.stop)
        yield gateway


def one(collector: Collector, name: str, **attributes: str) -> Span:
    wait_until(lambda: len(collector.named(name, **attributes)) == 1, report=lambda: str(collector.spans))
    return collector.named(name, **attributes)[0]


def of(collector: Collector, parent: Span, name: str) -> Span:
    def found() -> list[Span]:
        return [span for span in collector.spans if (span.name, span.parent_id) == (name, parent.span_id)]

    wait_until(lambda: len(found()) == 1, report=lambda: str(collector.spans))
    return found()[0]


@pytest.mark.stack
def test_one_request_from_its_caller_to_its_first_token(traced: GatewayProcess, collector: Collector) -> None:
    answer = traced.http.post(
        "/v1/jobs",
        json={"prompt": f"{SECRET} delay=0.2 tokens=8 steps=4 drafted=medusa:10:6"},
        headers={"Prefer": "wait=20", "traceparent": f"00-{TRACE}-{CALLER}-01"},
    ).json()
    assert answer["status"] == "succeeded"
    request = one(collector, "POST /v1/jobs")
    assert (request.service, request.kind) == ("medusaq-gateway", SERVER)
    assert (request.trace_id, request.parent_id) == (TRACE, CALLER)
    assert request.attributes["http.response.status_code"] == 200

    job = one(collector, "job", medusaq_job_id=answer["id"])
    queue, engine = of(collector, job, "queue"), of(collector, job, "engine")
    assert job.service == "medusaq-worker"
    assert job.parent_id == request.span_id
    assert {job.trace_id, queue.trace_id, engine.trace_id} == {TRACE}
    assert (job.attributes["medusaq.job.status"], job.attributes["medusaq.job.attempt"]) == ("succeeded", 1)
    assert job.start == queue.start <= queue.end <= engine.end == job.end
    assert queue.end == pytest.approx(engine.start, abs=0.001)
    timing = answer["result"]["timing"]
    assert engine.end - engine.start == pytest.approx(timing["total_s"] - timing["queue_s"], abs=0.001)
    assert engine.end - engine.start > 0.19
    assert engine.start <= engine.events["first token"] <= engine.end
    assert engine.attributes["gen_ai.usage.output_tokens"] == 8
    assert engine.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert engine.attributes["medusaq.steps"] == 4
    assert engine.attributes["medusaq.tokens_per_step"] == 2
    assert engine.attributes["medusaq.acceptance.medusa"] == pytest.approx(0.6)
    assert not job.failed
    assert not engine.failed

    failing = traced.http.post(
        "/v1/jobs", json={"prompt": "fail=broken"}, headers={"Prefer": "wait=20"}
    ).json()
    broken = one(collector, "job", medusaq_job_id=failing["id"])
    assert broken.failed
    assert of(collector, broken, "engine").failed
    assert broken.trace_id != TRACE

    traced.http.get("/v1/jobs/job_none")
    assert one(collector, "GET /v1/jobs/{job_id}").attributes["http.response.status_code"] == 404
    assert SECRET.encode() not in collector.bodies
    assert not [span for span in collector.spans if "healthz" in span.name]


@pytest.mark.stack
def test_windows_of_a_batch_are_traces_of_their_own(traced: GatewayProcess, collector: Collector) -> None:
    lines = "".join(
        f'{{"custom_id":"{n}","method":"POST","url":"/v1/jobs","body":{{"prompt":"hi"}}}}\n' for n in range(2)
    )
    sent = {"file": ("a.jsonl", lines.encode())}
    file_id = traced.http.post("/v1/files", data={"purpose": "batch"}, files=sent).json()["id"]
    asked = {"input_file_id": file_id, "endpoint": "/v1/jobs", "completion_window": "24h"}
    batch_id = traced.http.post("/v1/batches", json=asked).json()["id"]

    def windows() -> list[Span]:
        return collector.named("window", medusaq_batch_id=batch_id)

    def lines() -> int:
        return sum(int(span.attributes["medusaq.window.lines"]) for span in windows())

    wait_until(lambda: lines() == 2, report=lambda: str(collector.spans))
    assert len({span.trace_id for span in windows()}) == len(windows())
    assert {span.parent_id for span in windows()} == {""}
    ends = sorted(
        (span.attributes["medusaq.window.first_line"], span.attributes["medusaq.window.last_line"])
        for span in windows()
    )
    assert (ends[0][0], ends[-1][1]) == (1, 2), "the range of lines of each"


@pytest.mark.stack
def test_a_collector_that_is_away_holds_nothing_up(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to(f"http://127.0.0.1:{free_port()}", monkeypatch)
    gateway = GatewayProcess(settings, tmp_path)
    assert gateway.http.post("/v1/jobs", json={"prompt": "hi"}).status_code == 202
    began = time.monotonic()
    assert gateway.stop() in (0, -15)
    assert time.monotonic() - began < 10, "what compose gives it is 15 s"


@pytest.mark.slow
def test_a_collector_that_never_answers_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        begun = tracing_setup.begin("x")
        with begun.request("GET", "/x", {}) as answered:
            answered("/x", 200)
        closing = threading.Thread(target=begun.close, daemon=True)
        closing.start()
        closing.join(CLOSE_LIMIT_S)
        assert not closing.is_alive()


def test_of_an_error_only_that_there_was_one_is_told(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text may have what the caller sent."""
    send_to(collector.url, monkeypatch)
    begun = tracing_setup.begin("x")
    with pytest.raises(ValueError, match=SECRET), begun.request("GET", "/x", {}):
        raise ValueError(SECRET)
    begun.close()
    assert one(collector, "GET").failed
    assert SECRET.encode() not in collector.bodies


@pytest.mark.parametrize("code", ["import api.app; api.app.create_app()", "import tasks.generate"])
@pytest.mark.slow
def test_nothing_is_imported_unless_somebody_asks(code: str) -> None:
    code = f"from tasks.base.telemetry.tracing_setup import begin; {code}; begin('x')"
    code += "; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    # FastAPI takes the bare interfaces where they are installed, for itself.
    ours = (
        "opentelemetry.sdk",
        "opentelemetry.exporter",
        "opentelemetry.proto",
        "tasks.base.telemetry.otel_tracing",
    )
    assert not [name for name in done.stdout.split() if name.startswith(ours)]


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"), ("X", "")]
)
def test_what_turns_traces_off(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    if variable != "X":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert not tracing_setup.configured()
    assert not tracing_setup.begin("x").on


def test_traces_that_cannot_be_sent_are_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with caplog.at_level(logging.WARNING):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        assert not tracing_setup.begin("x").on
        assert "only http/protobuf is supported" in caplog.text
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
        monkeypatch.delitem(sys.modules, "tasks.base.telemetry.otel_tracing", raising=False)
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        assert not tracing_setup.begin("x").on
        assert "pip install 'medusaq[tracing]'" in caplog.text


def test_a_setting_of_traces_that_is_refused_keeps_nothing_else_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with caplog.at_level(logging.WARNING):
        assert not tracing_setup.begin("x").on
    [line] = [record.getMessage() for record in caplog.records if record.name == tracing_setup.__name__]
    assert line.startswith("no traces are sent: OTEL_* is refused: ")
    assert "max_queue_size" in line
