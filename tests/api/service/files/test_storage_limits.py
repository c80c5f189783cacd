"""What a key may have stored, over HTTP: what is refused, how to go on, and that nobody else is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tasks.base.settings import Settings
from tasks.records.api_key import Limits
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.api.forms import FORM, PURPOSE, form
from tests.support.servers import RedisServer, fast_settings

pytestmark = pytest.mark.stack

MOST = 10_000  # bytes of a file
LINE = b'{"custom_id":"a","method":"POST","url":"/v1/jobs","body":{"prompt":"hi"}}\n'


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, max_file_bytes=MOST)


@pytest.fixture
def key(gateway: GatewayProcess, gateway_settings: Settings) -> Iterator[Any]:
    """Makes a key with these limits, and a client that sends it."""
    store = JobStore(gateway_settings)
    clients: list[httpx.Client] = []

    def made(**limits: int) -> httpx.Client:
        _, secret = KeyStore(store.db).create("test", Limits(**limits))
        bearer = {"Authorization": f"Bearer {secret}"}
        clients.append(httpx.Client(base_url=gateway.url, headers=bearer, timeout=20))
        return clients[-1]

    yield made
    for client in clients:
        client.close()
    store.close()


def upload(client: httpx.Client, data: bytes, chunked: bool = False) -> httpx.Response:
    body = form(PURPOSE, ("file", data, "a.jsonl"))
    return client.post("/v1/files", content=iter([body]) if chunked else body, headers=FORM)


def refused(response: httpx.Response) -> str:
    """The message."""
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "file_storage_limit")
    assert error["type"] == "invalid_request_error"
    message: str = error["message"]
    return message


def test_files_of_a_key(key: Any) -> None:
    mine, other = key(max_files=2), key(max_files=2)
    first, second = (upload(mine, LINE).json()["id"] for _ in range(2))
    assert "2 files with " in refused(upload(mine, LINE))
    assert upload(other, LINE).status_code == 200
    assert mine.delete(f"/v1/files/{first}").status_code == 200
    assert upload(mine, LINE).status_code == 200
    assert mine.get(f"/v1/files/{second}/content").content == LINE


def test_bytes_of_a_key(key: Any) -> None:
    mine = key(max_files_bytes=4000)
    first = upload(mine, b"x" * 3000).json()["id"]
    assert "of at most 100,000 files with 4,000 bytes" in refused(upload(mine, b"x" * 3000))
    assert upload(mine, b"x" * 500).status_code == 200, "what it is refused leaves nothing behind"
    assert upload(key(), b"x" * 3000).status_code == 200
    assert mine.delete(f"/v1/files/{first}").status_code == 200
    assert upload(mine, b"x" * 3000).status_code == 200


def test_an_upload_of_unknown_length_needs_room_for_the_largest_file(key: Any) -> None:
    mine = key(max_files_bytes=MOST + 1000)
    first = upload(mine, b"x" * 1001, chunked=True).json()["id"]
    assert "10,000 bytes more were to come" in refused(upload(mine, b"x", chunked=True))
    assert upload(mine, b"x").status_code == 200
    assert mine.delete(f"/v1/files/{first}").status_code == 200
    assert upload(mine, b"x", chunked=True).status_code == 200


def test_a_batch_needs_room_for_a_copy_of_its_input(key: Any) -> None:
    mine = key(max_files_bytes=700)
    file = upload(mine, LINE * 4).json()["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/jobs"}
    assert mine.post("/v1/batches", json=asked).status_code == 200
    assert "wait for the end of batches" in refused(mine.post("/v1/batches", json=asked))


def test_records_of_a_key(key: Any) -> None:
    mine, other = key(max_stored_bytes=20_000), key(max_stored_bytes=20_000)
    job = {"prompt": "x" * 10_000, "max_tokens": 10}
    first = mine.post("/v1/jobs", json=job).json()["id"]
    file = upload(mine, LINE).json()["id"]
    batch = {
        "input_file_id": file,
        "endpoint": "/v1/jobs",
        "metadata": {f"k{n}": "v" * 500 for n in range(16)},
    }
    for response in (mine.post("/v1/jobs", json=job), mine.post("/v1/batches", json=batch)):
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (429, "storage_limit")
        assert error["message"].startswith("jobs, batches and deliveries of webhooks may take 20,000 bytes")
        assert response.headers["x-should-retry"] == "false", "it would be refused for a week"
    assert other.post("/v1/jobs", json=job).status_code == 202
    assert mine.post("/v1/jobs", json={"prompt": "hi", "max_tokens": 10}).status_code == 202, "it still fits"
    assert mine.post(f"/v1/jobs/{first}/cancel").status_code == 200
    assert mine.delete(f"/v1/jobs/{first}").status_code == 200
    assert mine.post("/v1/jobs", json=job).status_code == 202


def test_no_gateway_takes_more_results_than_there_is_room_for(key: Any) -> None:
    mine = key(max_stored_bytes=20_000)
    asked = {"prompt": "hi", "max_tokens": 2000, "logprobs": 20}
    answer = mine.post("/v1/jobs", json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "storage_limit")
    assert mine.post("/v1/jobs", json={**asked, "max_tokens": 5}).status_code == 202
