"""What a page in a browser here may do to an open gateway, and what browsers are told of answers."""

from __future__ import annotations

import re
import socket

import httpx
import pytest

from tasks.base.settings import Settings
from tasks.records.api_key import Limits
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.support.servers import RedisServer, fast_settings

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


def own_address() -> str:
    """At which others reach this machine; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return str(asked.getsockname()[0])


def test_another_machine_that_reaches_what_was_meant_for_this_one(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """uvicorn was told to listen everywhere, which the settings know nothing of."""
    settings = fast_settings(redis_server)
    process = GatewayProcess(settings, tmp_path_factory.mktemp("gateway"), "--host", "0.0.0.0")
    assert process.http.get("/v1/jobs").status_code == 200
    as_here = {"Host": "127.0.0.1"}
    with httpx.Client(base_url=f"http://{own_address()}:{process.port}", headers=as_here) as remote:
        for path in ("/v1/jobs", "/metrics"):
            answer = remote.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "missing_api_key"), path
        assert remote.get("/healthz").status_code == 200
        store = JobStore(settings)
        bearer = {"Authorization": f"Bearer {KeyStore(store.db).create('test', Limits())[1]}"}
        store.close()
        assert remote.get("/v1/jobs", headers=bearer).status_code == 200
    process.stop()


def test_another_machine_behind_a_proxy_of_this_one(gateway: GatewayProcess) -> None:
    for client, status in (("203.0.113.9", 401), ("127.0.0.2", 200)):
        answer = gateway.http.get("/v1/jobs", headers={"X-Forwarded-For": client})
        assert answer.status_code == status, client


def test_a_unix_socket_is_of_this_machine(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("gateway")
    process = GatewayProcess(fast_settings(redis_server), folder, socket=folder / "http.sock")
    assert process.http.get("/v1/jobs").status_code == 200
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
    assert policy["script-src"].startswith("'self' 'sha256-")
    assert "'unsafe-inline'" not in policy["script-src"]
    assert "url: '/openapi.json'" in answer.text
    assert "http" not in answer.headers["content-security-policy"], "all of it is ours"
    loaded = re.findall(r'(?:src|href)="(/[^"]+)"', answer.text)
    kinds = [http.get(path).headers["content-type"].partition(";")[0] for path in loaded]
    assert sorted(kinds) == ["text/css", "text/javascript"]
    assert http.get("/redoc").status_code == 404, "it would need more than the policy grants"
