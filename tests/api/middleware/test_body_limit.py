"""Limits that hold for everybody, from both sides. Those of a key and of a file have tests of their own."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import httpx
import pytest

from tasks.base.settings import Settings
from tasks.schema.json_lines import physical_lines
from tests.api.conftest import GatewayProcess
from tests.api.forms import FORM, form
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, wait_until

pytestmark = pytest.mark.stack

BYTES, LINES = 1500, 3
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, max_body_bytes=BYTES, max_batch_lines=LINES)


@pytest.fixture(scope="module")
def system(gateway: GatewayProcess, gateway_settings: Settings, model_worker: Workers) -> httpx.Client:
    model_worker.io(gateway_settings)
    return gateway.http


def body(size: int) -> bytes:
    empty = json.dumps({"prompt": ""}).encode()
    return empty.replace(b'""', b'"' + b"x" * (size - len(empty)) + b'"')


@pytest.mark.parametrize(("size", "status"), [(BYTES, 202), (BYTES + 1, 413)])
def test_bytes_of_a_body(http: httpx.Client, size: int, status: int) -> None:
    def in_pieces() -> Iterator[bytes]:
        yield body(size)[:1000]
        yield body(size)[1000:]

    assert len(body(size)) == size
    assert http.post("/v1/jobs", content=body(size), headers=JSON).status_code == status
    assert http.post("/v1/jobs", content=in_pieces(), headers=JSON).status_code == status


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_bytes_of_a_line(end: bytes) -> None:
    fits = b"x" * (10 - len(end)) + end
    assert list(physical_lines(io.BytesIO(fits), 10)) == [(1, fits)]
    assert list(physical_lines(io.BytesIO(b"x" + fits), 10)) == [(1, None)]
    assert list(physical_lines(io.BytesIO(b"x" + fits.strip() + b"\ny"), 10)) == [(1, None), (2, b"y")]


@pytest.mark.parametrize(("lines", "status"), [(LINES, "completed"), (LINES + 1, "failed")])
def test_lines_of_a_batch(system: httpx.Client, lines: int, status: str) -> None:
    each = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/jobs", "body": {"prompt": "hi"}}
        for n in range(lines)
    ]
    content = "".join(json.dumps(line) + "\n" for line in each).encode()
    upload = form(("purpose", "batch"), ("file", content, "a.jsonl"))
    file = system.post("/v1/files", content=upload, headers=FORM).json()["id"]
    made = system.post("/v1/batches", json={"input_file_id": file, "endpoint": "/v1/jobs"}).json()["id"]
    wait_until(lambda: system.get(f"/v1/batches/{made}").json()["status"] in ("completed", "failed"))
    batch = system.get(f"/v1/batches/{made}").json()
    assert batch["status"] == status
    if status == "failed":
        assert batch["errors"]["data"][0]["code"] == "too_many_tasks"
