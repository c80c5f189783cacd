"""/metrics of a real gateway: the queues, the workers behind it, itself, and what is left without Redis."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tasks.base.settings import Settings
from tasks.base.telemetry.metrics import ProcessMetrics
from tasks.records.api_key import Limits
from tasks.records.job import Priority, Status
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tasks.store.metrics_store import MetricsStore
from tests.api.conftest import GatewayProcess
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import ROOT, Workers, wait_until
from tests.tasks.helpers.records import claimed, queued

pytestmark = pytest.mark.stack
Labels = frozenset[tuple[str, str]]


def samples(http: httpx.Client) -> dict[tuple[str, Labels], float]:
    """By name and labels; which worker it was counts for nothing."""
    answer = http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (s.name, frozenset((k, v) for k, v in s.labels.items() if k != "worker")): s.value
        for family in text_string_to_metric_families(answer.text)
        for s in family.samples
    }


def one(http: httpx.Client, name: str, **labels: str) -> float:
    return samples(http)[name, frozenset(labels.items())]


def test_the_queues_as_they_stand(gateway: GatewayProcess, gateway_settings: Settings) -> None:
    store, http = JobStore(gateway_settings), gateway.http
    first = queued(store)
    later = queued(store, priority=Priority.BULK)
    running = queued(store)
    claim = claimed(store, running)
    found = samples(http)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert (value("medusaq_jobs", status="queued"), value("medusaq_jobs", status="running")) == (2, 1)
    assert value("medusaq_queue_jobs", priority="interactive") == 1
    assert value("medusaq_queue_jobs", priority="bulk") == 1
    age = value("medusaq_queue_oldest_seconds", priority="interactive")
    assert 0 < value("medusaq_queue_oldest_seconds", priority="bulk") <= age < 60
    assert value("medusaq_bulk_outstanding_jobs") == 1
    assert (value("medusaq_batches_led"), value("medusaq_batches_active")) == (0, 0)
    assert (value("medusaq_workers", service="worker"), value("medusaq_workers", service="io")) == (0, 0)
    assert value("medusaq_redis_up") == 1
    assert value("medusaq_redis_memory_used_bytes") > 100_000
    assert value("medusaq_file_store_free_bytes") > 0

    for job_id in (first, later):
        store.cancel(job_id)
    store.finish(running, claim.fencing_token, Status.FAILED)
    assert one(http, "medusaq_jobs_ended_total", status="cancelled") == 2
    assert one(http, "medusaq_jobs_ended_total", status="failed") == 1
    assert one(http, "medusaq_queue_oldest_seconds", priority="interactive") == 0
    store.close()


def test_requests_by_route_and_status_with_few_labels(gateway: GatewayProcess) -> None:
    http = gateway.http

    def count(method: str, route: str, status: int) -> float:
        key = frozenset({"method": method, "route": route, "status": str(status)}.items())
        return samples(http).get(("medusaq_http_requests_total", key), 0.0)

    job = "/v1/jobs/{job_id}"
    before = count("GET", job, 404)
    for job_id in ("job_a", "job_b"):
        http.get(f"/v1/jobs/{job_id}")
    assert count("GET", job, 404) == before + 2
    http.request("PROPFIND", "/no/such/path")
    http.post("/v1/jobs", content=b"x" * 10_000, headers={"Content-Type": "application/json"})
    assert count("other", "other", 404) == 1
    assert count("POST", "other", 413) == 1, "refused before it was routed"
    text = http.get("/metrics").text
    assert "job_a" not in text
    assert "/no/such" not in text
    assert one(http, "medusaq_http_request_seconds_count", method="GET", route=job) >= 2


def test_both_kinds_of_workers_are_seen_until_they_leave(
    gateway: GatewayProcess, gateway_settings: Settings, workers: Workers
) -> None:
    http = gateway.http
    model, io = workers.model(gateway_settings), workers.io(gateway_settings)
    done = http.post("/v1/jobs", json={"prompt": "hi tokens=3"}, headers={"Prefer": "wait=20"}).json()
    assert done["status"] == "succeeded"
    key = "medusaq_job_seconds_count", frozenset({("priority", "interactive")})
    wait_until(lambda: samples(http).get(key) == 1)
    assert one(http, "medusaq_job_queue_seconds_count", priority="interactive") == 1
    assert one(http, "medusaq_job_first_token_seconds_count", priority="interactive") == 1
    assert one(http, "medusaq_job_seconds_count", priority="bulk") == 0
    assert one(http, "medusaq_generated_tokens_total", model="scripted") == 3
    assert one(http, "medusaq_slots", model="scripted") == gateway_settings.slots
    wait_until(lambda: one(http, "medusaq_workers", service="io") == 1)
    assert one(http, "medusaq_workers", service="worker") == 1
    wait_until(lambda: one(http, "medusaq_batch_round_seconds_count") > 0)
    assert one(http, "medusaq_reconciled_jobs_total", outcome="lost") == 0
    assert one(http, "medusaq_batches_led") == 1
    assert http.get("/metrics").text.count("# TYPE medusaq_redis_seconds histogram") == 1
    for worker in (model, io):
        worker.terminate()
    assert one(http, "medusaq_workers", service="io") == one(http, "medusaq_workers", service="worker") == 0


def test_a_worker_that_fell_silent_is_forgotten(store: JobStore) -> None:
    metrics_store = MetricsStore(store.db)
    metrics_store.write(ProcessMetrics("io", "w1", ()))
    assert [figures.worker for figures in metrics_store.read()] == ["w1"]
    store.db.redis.delete(f"{store.db.prefix}figures:w1")
    assert metrics_store.read() == []
    assert store.db.redis.smembers(f"{store.db.prefix}figures") == set()


def test_without_redis_the_gateway_speaks_of_itself(own_redis: RedisServer, tmp_path: Path) -> None:
    process = GatewayProcess(fast_settings(own_redis), tmp_path)
    try:
        assert one(process.http, "medusaq_redis_up") == 1
        own_redis.stop()
        found = samples(process.http)
        assert found["medusaq_redis_up", frozenset()] == 0
        assert found["medusaq_redis_failures_total", frozenset()] >= 1
        assert ("medusaq_workers", frozenset({("service", "io")})) not in found
    finally:
        process.stop()


def test_a_gateway_that_asks_for_a_key_is_asked_with_one_by_the_prometheus_that_is_shipped(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = fast_settings(redis_server, publish_address="10.0.0.1")  # others can reach it
    store = JobStore(settings)
    _, secret = KeyStore(store.db).create("prometheus", Limits())
    store.close()
    for keyed, key, status in (
        (settings, secret, 200),
        (settings, "", 401),
        (fast_settings(redis_server), "", 200),
    ):
        gateway = GatewayProcess(keyed, tmp_path)
        try:
            path, headers = _as_prometheus(key)
            assert gateway.http.get(path, headers=headers).status_code == status
        finally:
            gateway.stop()


def _as_prometheus(key: str) -> tuple[str, dict[str, str]]:
    """What it asks with this in the file that compose mounts for it; of nothing no blank is sent."""
    [scrape] = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]
    read = scrape["authorization"]["credentials_file"]
    assert f"${{PROMETHEUS_KEY_FILE:-/dev/null}}:{read}:ro" in service["volumes"]
    kind = scrape["authorization"].get("type", "Bearer")
    return scrape.get("metrics_path", "/metrics"), {"Authorization": f"{kind} {key}".strip()}
