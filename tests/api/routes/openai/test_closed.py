"""Who waits no more: closed connections, answers that take too long, records that have served their time."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tasks.base.settings import Settings
from tests.api.conftest import GatewayProcess
from tests.support.servers import RedisServer, fast_settings
from tests.support.tuned import constants
from tests.support.workers import Workers, wait_until

pytestmark = pytest.mark.stack

HEARTBEAT_S = 0.2  # of fast_settings
MARGIN_S = 20.0  # for processes that share two cores with other tests


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server)


def opened(gateway: GatewayProcess, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A connection with this request on it."""
    connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
    return connection


def jobs(http: httpx.Client, marker: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/v1/jobs", params={"metadata[m]": marker}).json()["data"]
    return found


def statuses(http: httpx.Client, marker: str) -> list[str]:
    return sorted(job["status"] for job in jobs(http, marker))


def cancelled_soon(http: httpx.Client, marker: str, count: int = 1) -> None:
    began = time.monotonic()
    wait_until(
        lambda: statuses(http, marker) == ["cancelled"] * count, report=lambda: str(jobs(http, marker))
    )
    assert time.monotonic() - began < HEARTBEAT_S + MARGIN_S


@pytest.mark.usefixtures("model_worker")
@pytest.mark.parametrize("stream", [False, True])
def test_before_the_first_token(gateway: GatewayProcess, http: httpx.Client, stream: bool) -> None:
    marker = f"first-{stream}"
    body = {"prompt": "delay=60 long", "stream": stream, "metadata": {"m": marker}}
    with opened(gateway, body):
        wait_until(lambda: statuses(http, marker) == ["running"])
    cancelled_soon(http, marker)


@pytest.mark.usefixtures("model_worker")
def test_in_the_middle_of_a_stream(gateway: GatewayProcess, http: httpx.Client) -> None:
    body = {"prompt": "x stream=1000 delay=60", "stream": True, "metadata": {"m": "middle"}}
    with opened(gateway, body) as connection:
        seen = b""
        while seen.count(b"data: ") < 3:
            seen += connection.recv(4096)
    cancelled_soon(http, "middle")
    [job] = jobs(http, "middle")
    assert job["result"]["text"].startswith("x x x"), "what was made is kept"


@pytest.mark.usefixtures("model_worker")
@pytest.mark.parametrize("stream", [False, True])
def test_all_of_several_answers(gateway: GatewayProcess, http: httpx.Client, stream: bool) -> None:
    """More than run at once: those that wait are cancelled too."""
    marker = f"several-{stream}"
    body = {"prompt": "delay=60 x", "n": 9, "stream": stream, "metadata": {"m": marker}}
    with opened(gateway, body):
        wait_until(lambda: statuses(http, marker).count("running") >= 4)
        assert "queued" in statuses(http, marker)
    cancelled_soon(http, marker, 9)


@pytest.mark.usefixtures("model_worker")
def test_the_official_client_closes_its_stream(client: OpenAI, http: httpx.Client) -> None:
    stream = client.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": "x stream=1000 delay=60"}],
        stream=True,
        metadata={"m": "client"},
    )
    next(iter(stream))
    stream.close()
    cancelled_soon(http, "client")


@pytest.mark.usefixtures("model_worker")
def test_an_answered_request_cancels_nothing(client: OpenAI, http: httpx.Client) -> None:
    client.completions.create(model="scripted", prompt="x", n=3, extra_body={"metadata": {"m": "fine"}})
    time.sleep(HEARTBEAT_S)
    assert statuses(http, "fine") == ["succeeded"] * 3


@pytest.fixture
def own_gateway(request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path) -> Iterator[Any]:
    """A gateway with settings of the test's own, and these settings and constants."""
    chosen = dict(request.param)
    changed = chosen.pop("constants", None)
    settings = fast_settings(redis_server, **chosen)
    process = GatewayProcess(settings, tmp_path, env=constants(changed) if changed else None)
    with OpenAI(base_url=f"{process.url}/v1", api_key="x", max_retries=0, timeout=20) as client:
        yield settings, process, client
    process.stop()


@pytest.mark.parametrize("own_gateway", [{"online_timeout_s": 1.0}], indirect=True)
def test_an_answer_that_takes_too_long(own_gateway: Any, workers: Workers) -> None:
    settings, gateway, client = own_gateway
    workers.model(settings)
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError) as late:
        client.completions.create(
            model="scripted", prompt="delay=60", extra_body={"metadata": {"m": "whole"}}
        )
    assert (late.value.status_code, late.value.code) == (504, "not_in_time")
    assert 1 <= time.monotonic() - began < 1 + MARGIN_S
    stream = client.completions.create(
        model="scripted",
        prompt="x stream=1000 delay=60",
        stream=True,
        extra_body={"metadata": {"m": "stream"}},
    )
    with pytest.raises(openai.APIError) as broken:
        list(stream)
    assert broken.value.code == "not_in_time"
    for marker in ("whole", "stream"):
        wait_until(lambda m=marker: statuses(gateway.http, m) in (["cancelled"], ["expired"]))


@pytest.mark.parametrize("own_gateway", [{}], indirect=True)
def test_without_a_worker_there_is_no_answer(own_gateway: Any) -> None:
    _, gateway, client = own_gateway
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(model="scripted", prompt="x", stream=stream)
        assert (refused.value.status_code, refused.value.code) == (503, "no_worker")
        assert int(refused.value.response.headers["retry-after"]) >= 1
    assert gateway.http.get("/v1/jobs").json()["data"] == []


@pytest.mark.parametrize("own_gateway", [{"constants": {"api.service.online_run.KEEP_S": 1}}], indirect=True)
def test_records_of_online_jobs_go_soon(own_gateway: Any, workers: Workers) -> None:
    settings, gateway, client = own_gateway
    workers.model(settings)
    workers.io(settings)
    job_id = "job_" + client.completions.create(model="scripted", prompt="x").id.partition("-")[2]
    other = gateway.http.post("/v1/jobs", json={"prompt": "x"}, headers={"Prefer": "wait=20"}).json()
    wait_until(lambda: gateway.http.get(f"/v1/jobs/{job_id}").status_code == 404)
    assert gateway.http.get(f"/v1/jobs/{other['id']}").json()["status"] == "succeeded"


@pytest.mark.parametrize("own_gateway", [{}], indirect=True)
def test_a_gateway_that_stops_leaves_no_job_behind(own_gateway: Any, workers: Workers) -> None:
    settings, gateway, client = own_gateway
    workers.model(settings)
    stream = client.completions.create(model="scripted", prompt="x stream=1000 delay=60", stream=True)
    next(iter(stream))
    second = GatewayProcess(settings, gateway.log.parent)
    gateway.stop()
    stream.close()
    [job] = second.http.get("/v1/jobs").json()["data"]
    ended = second.http.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=20"}).json()
    assert ended["status"] == "cancelled"
    second.stop()
