"""What a page in a browser here may do to an open gateway, and what browsers are told of answers."""

from __future__ import annotations

import httpx
import pytest

from tasks.settings import Settings
from tests.api.conftest import GatewayProcess
from tests.servers import RedisServer, fast_settings

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "127.0.0.1:{port}", "LOCALHOST:1"])
def test_names_of_this_machine(gateway: GatewayProcess, host: str) -> None:
    named = {"Host": host.format(port=gateway.port)}
    assert gateway.http.get("/v1/jobs", headers=named).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.5",
        "[",
        "",
    ],
)
def test_a_name_that_leads_here_from_elsewhere(gateway: GatewayProcess, host: str) -> None:
    answer = gateway.http.get("/v1/jobs", headers={"Host": host.format(port=gateway.port)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1"])
def test_a_page_of_another_site(gateway: GatewayProcess, origin: str) -> None:
    answer = gateway.http.post("/v1/jobs", json={"prompt": "x"}, headers={"Origin": origin})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
def test_figures_are_for_this_machine_alone(gateway: GatewayProcess, headers: dict[str, str]) -> None:
    assert gateway.http.get("/metrics").status_code == 200
    answer = gateway.http.get("/metrics", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")


def test_figures_in_a_container_that_is_published_here(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Prometheus asks by the name of the service."""
    settings = fast_settings(redis_server, host="0.0.0.0", publish_address="127.0.0.1")
    process = GatewayProcess(settings, tmp_path_factory.mktemp("gateway"))
    assert process.http.get("/metrics", headers={"Host": "gateway:7860"}).status_code == 200
    process.stop()


def test_our_own_page(gateway: GatewayProcess) -> None:
    answer = gateway.http.post("/v1/jobs", json={"prompt": "x"}, headers={"Origin": gateway.url})
    assert answer.status_code == 202


def test_behind_a_proxy_any_name_is_fine(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    process = GatewayProcess(fast_settings(redis_server, allow_open=True), tmp_path_factory.mktemp("gateway"))
    headers = {"Host": "medusaq.example", "Origin": "https://medusaq.example"}
    assert process.http.get("/v1/jobs", headers=headers).status_code == 200
    process.stop()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/v1/jobs", 200),
        ("GET", "/v1/jobs/job_x", 404),
        ("GET", "/nowhere", 404),
        ("PUT", "/v1/jobs", 405),
        ("POST", "/v1/jobs", 413),
        ("GET", "/metrics", 200),
        ("GET", "/v1/schemas/batch_line.json", 200),
    ],
)
def test_headers_of_every_answer(
    http: httpx.Client, gateway_settings: Settings, method: str, path: str, status: int
) -> None:
    body = b"x" * (gateway_settings.max_body_bytes + 1) if status == 413 else b""
    answer = http.request(method, path, content=body)
    assert answer.status_code == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert answer.headers["cache-control"] == "no-store"


def test_the_docs_may_load_what_they_need_and_no_more(http: httpx.Client) -> None:
    answer = http.get("/docs")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "'unsafe-inline'" not in policy["script-src"]
    assert "sha256-" in policy["script-src"]
    assert "url: '/openapi.json'" in answer.text
    assert http.get("/redoc").status_code == 404, "it would need more than the policy grants"
