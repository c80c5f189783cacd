"""Every response names its request, by the client's id if it has a sane one."""

from __future__ import annotations

import re
import socket

import httpx
import pytest

from api.app import create_app
from tasks.base.settings import Settings
from tests.api.conftest import BODY_LIMIT, GatewayProcess

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("model_worker")]

MADE = re.compile(r"req_[0-9a-f]{32}")


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/healthz", b"", 200),
        ("GET", "/docs", b"", 200),
        ("GET", "/metrics", b"", 200),
        ("GET", "/v1/jobs", b"", 200),
        ("POST", "/v1/jobs", b"{", 400),
        ("POST", "/v1/jobs", b" " * (BODY_LIMIT + 1), 413),
        ("PUT", "/v1/jobs", b"", 405),
        ("GET", "/nowhere", b"", 404),
    ],
)
def test_every_response_has_an_id(
    http: httpx.Client, method: str, path: str, content: bytes, status: int
) -> None:
    headers = {"content-type": "application/json"}
    first = http.request(method, path, content=content, headers=headers)
    second = http.request(method, path, content=content, headers=headers)
    assert (first.status_code, second.status_code) == (status, status)
    ids = [answer.headers["x-request-id"] for answer in (first, second)]
    assert all(MADE.fullmatch(one) for one in ids), ids
    assert ids[0] != ids[1]


def test_so_have_those_to_a_host_or_a_request_that_is_refused(
    gateway: GatewayProcess, http: httpx.Client
) -> None:
    answer = http.get("/v1/jobs", headers={"Host": "evil.example"})
    assert (answer.status_code, bool(MADE.fullmatch(answer.headers["x-request-id"]))) == (403, True)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        received = connection.makefile("rb").read()
    assert received.startswith(b"HTTP/1.1 400")
    assert re.search(rb"\r\nx-request-id: req_[0-9a-f]{32}\r\n", received)


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/v1/models"])
def test_a_sane_one_is_echoed(http: httpx.Client, path: str) -> None:
    for given in ("a", "00-4bf92f3577b34da6a3ce929d0e0e4736", "A.b_c:d+e/f=", "x" * 128):
        assert http.get(path, headers={"X-Request-ID": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "two words", 'a"b', "a\tb", "é".encode(), "{}", "a,b"])
def test_another_is_replaced(http: httpx.Client, given: str | bytes) -> None:
    answer = http.get(
        "/healthz", headers=[(b"x-request-id", given if isinstance(given, bytes) else given.encode())]
    )
    assert MADE.fullmatch(answer.headers["x-request-id"])


def test_so_are_two(http: httpx.Client) -> None:
    answer = http.get("/healthz", headers=[("x-request-id", "a"), ("x-request-id", "b")])
    assert MADE.fullmatch(answer.headers["x-request-id"])


def test_an_online_answer_has_its_jobs_id_or_the_clients(http: httpx.Client) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.headers["x-request-id"] == answer.json()["id"].replace("chatcmpl-", "job_")
    for stream in (False, True):
        headers = {"x-request-id": "mine"}
        answer = http.post("/v1/chat/completions", json={**body, "stream": stream}, headers=headers)
        assert answer.headers.get_list("x-request-id") == ["mine"]


async def _broken() -> None:
    raise RuntimeError("secret detail")


@pytest.mark.anyio
async def test_an_internal_error_is_logged_with_its_id(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(settings)
    app.add_api_route("/broken", _broken)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        response = await client.get("/broken", headers={"x-request-id": "mine"})
        made = (await client.get("/broken")).headers["x-request-id"]
    assert response.headers["x-request-id"] == "mine"
    for request_id in ("mine", made):
        assert f"request {request_id} failed by an internal error" in caplog.text
