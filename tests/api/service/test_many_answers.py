"""Many answers to one large prompt: it is held once, in Redis and in the gateway, and there is a limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tasks.base.settings import Settings
from tests.api.conftest import GatewayProcess
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers

pytestmark = pytest.mark.stack

BODY = 16_000_000
SIZE, N = BODY // 32 - 1000, 128  # of a prompt and its answers, just below the limit
SILENT = "pad="  # the scripted engine does not echo what follows


def schema_of(size: int) -> dict[str, Any]:
    """A response_format of so many bytes."""
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": {"description": "y" * size}}}


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gateway_settings(own_server: RedisServer) -> Settings:
    return fast_settings(own_server, max_body_bytes=BODY, slots=2)


@pytest.fixture
def ask(http: httpx.Client, model_worker: Workers) -> Any:  # noqa: ARG001  # it answers
    def asked(size: int, endpoint: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
        prompt = "ok " + SILENT + "x" * size
        given = {"prompt": prompt} if "prompt" not in fields and "chat" not in endpoint else {}
        given = given or ({"messages": [{"role": "user", "content": prompt}]} if "chat" in endpoint else {})
        return http.post(endpoint, json={**given, "max_tokens": 1, **fields})

    return asked


def stored_bytes(server: RedisServer) -> int:
    with redis.Redis(port=server.port) as client:
        return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter())


def resident_peak(pid: int) -> int:
    """Bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_is_held_once(
    ask: Any, http: httpx.Client, gateway: GatewayProcess, own_server: RedisServer, stream: bool
) -> None:
    assert ask(10, n=2, stream=stream).status_code == 200  # what is loaded once for all
    before, resident = stored_bytes(own_server), resident_peak(gateway.pid)
    assert ask(SIZE, n=N, stream=stream).status_code == 200
    assert SIZE < stored_bytes(own_server) - before < 3 * SIZE
    assert resident_peak(gateway.pid) - resident < 20 * SIZE
    page = http.get("/v1/jobs", params={"limit": 100}).json()
    assert 1 < len(page["data"]) < 10, "a page has some megabytes at most"
    assert page["has_more"]
    assert all(len(job["request"]["messages"][0]["content"]) > SIZE for job in page["data"])


def test_a_list_of_prompts_with_a_large_rest(ask: Any, own_server: RedisServer) -> None:
    """All that is not a prompt is the same in every job."""
    size = 200_000
    before = stored_bytes(own_server)
    prompts = [f"a{place}" for place in range(100)]
    answer = ask(0, "/v1/completions", prompt=prompts, response_format=schema_of(size))
    assert answer.status_code == 200, answer.text[:300]
    assert [choice["text"] for choice in answer.json()["choices"]] == prompts
    assert size < stored_bytes(own_server) - before < 3 * size


@pytest.mark.parametrize(
    ("size", "fields", "param"),
    [
        (SIZE + 1000, {"n": N}, "n"),
        (BODY - 200, {"n": 5}, "n"),
        (0, {"prompt": ["a"] * 100, "response_format": schema_of(1_000_000)}, "prompt"),
        (0, {"prompt": ["a" * 1_000_000, "b" * 1_000_000], "n": 33}, "n"),
    ],
)
def test_prompts_over_the_limit(
    ask: Any, http: httpx.Client, size: int, fields: dict[str, Any], param: str
) -> None:
    before = http.get("/v1/jobs", params={"limit": 1}).json()["data"]
    answer = ask(size, "/v1/completions", **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (413, "body_too_large", param)
    assert f"over the limit of {4 * BODY:,}" in error["message"]
    assert http.get("/v1/jobs", params={"limit": 1}).json()["data"] == before, "nothing was made"


def test_prompts_below_the_limit(ask: Any) -> None:
    assert len(json.loads(ask(BODY - 200, n=4).content)["choices"]) == 4
