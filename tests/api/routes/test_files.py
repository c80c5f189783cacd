"""The file endpoints through the official client, over a folder and over a bucket."""

from __future__ import annotations

import asyncio
import io
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.support.peers.s3 import S3Server
from tests.support.servers import RedisServer, fast_settings

pytestmark = pytest.mark.stack

DATA = b'{"custom_id": "a"}\n' * 1000
FIELDS = ["id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status"]
DAY_S = 24 * 3600


@pytest.fixture(scope="module", params=["folder", "s3"])
def gateway_settings(request: pytest.FixtureRequest, redis_server: RedisServer) -> Settings:
    if request.param == "folder":
        return fast_settings(redis_server)
    server: S3Server = request.getfixturevalue("s3_server")
    return fast_settings(redis_server, files=f"s3://{server.new_bucket()}/prefix")


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[OpenAI]:
    with OpenAI(api_key="none", base_url=f"{gateway.url}/v1", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _no_files_are_left(gateway: GatewayProcess) -> Iterator[None]:
    yield
    for file in gateway.http.get("/v1/files?limit=100").json()["data"]:
        gateway.http.delete(f"/v1/files/{file['id']}")


def upload(http: httpx.Client, data: bytes = DATA, name: str = "a.jsonl", key: str = "", **form: str) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    form = {"purpose": "batch", **form}
    return http.post("/v1/files", data=form, files={"file": (name, data)}, headers=headers).json()


def test_create_retrieve_content_delete(client: OpenAI) -> None:
    before = int(time.time())
    made = client.files.create(file=("prompts ä.jsonl", DATA), purpose="batch")
    assert (made.object, made.bytes, made.filename) == ("file", len(DATA), "prompts ä.jsonl")
    assert (made.purpose, made.status) == ("batch", "processed")
    assert before - 1 <= made.created_at <= time.time() + 1
    assert made.expires_at is not None
    assert made.expires_at - made.created_at in (30 * DAY_S, 30 * DAY_S + 1)
    assert client.files.retrieve(made.id) == made
    assert client.files.wait_for_processing(made.id) == made
    assert client.files.content(made.id).read() == DATA
    deleted = client.files.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "file", True)
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            call(made.id)
        assert caught.value.code == "file_not_found"


def test_the_same_from_asyncio(gateway: GatewayProcess) -> None:
    async def run() -> None:
        async with AsyncOpenAI(api_key="none", base_url=f"{gateway.url}/v1", max_retries=0) as client:
            files = await asyncio.gather(
                *(client.files.create(file=(f"{n}.jsonl", DATA[: n * 20]), purpose="batch") for n in range(5))
            )
            listed = [file async for file in client.files.list(limit=2)]
            assert sorted(file.filename for file in listed) == [f"{n}.jsonl" for n in range(5)]
            for n, file in enumerate(files):
                assert await client.files.retrieve(file.id) == file
                assert (await client.files.content(file.id)).content == DATA[: n * 20]
                assert (await client.files.delete(file.id)).deleted
            assert (await client.files.list()).data == []

    asyncio.run(run())


def test_every_way_to_give_a_file(client: OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_bytes(DATA)
    with path.open("rb") as handle:
        for file in (path, handle, DATA, io.BytesIO(DATA)):
            made = client.files.create(file=file, purpose="batch")
            assert client.files.content(made.id).read() == DATA


def test_expires_after(client: OpenAI) -> None:
    made = client.files.create(
        file=DATA, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at is not None
    assert made.expires_at - made.created_at in (3600, 3601)


def test_list(client: OpenAI) -> None:
    ids = [client.files.create(file=DATA, purpose="batch").id for _ in range(5)]
    assert [file.id for file in client.files.list()] == ids[::-1]
    assert [file.id for file in client.files.list(limit=2)] == ids[::-1], "the client asks for the next pages"
    assert [file.id for file in client.files.list(limit=3, order="asc", purpose="batch")] == ids
    page = client.files.list(limit=2, after=ids[3])
    assert ([file.id for file in page.data], page.has_more) == ([ids[2], ids[1]], True)
    assert client.files.list(purpose="batch_output").data == []


def test_the_shapes_without_the_client(http: httpx.Client) -> None:
    made = upload(http)
    assert list(made) == FIELDS
    listed = http.get("/v1/files").json()
    ends = {"first_id": made["id"], "last_id": made["id"]}
    assert listed == {"object": "list", "data": [made], "has_more": False, **ends}
    assert http.get("/v1/files?purpose=batch_output").json()["first_id"] is None


def zipped() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("a.jsonl", DATA)
    return archive.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", zipped(), b"\r\n--x\r\n--", bytes(range(256)) * 5000, b"\r\n" * 3_000_000, b"-" * 1_000_000],
    ids=["empty", "zip", "like a boundary", "binary", "line ends", "dashes"],
)
def test_any_bytes_come_back_as_they_were(http: httpx.Client, data: bytes) -> None:
    """What a batch can be made of is the batch's to say."""
    made = upload(http, data)
    assert made["bytes"] == len(data)
    assert http.get(f"/v1/files/{made['id']}/content").content == data


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=5-", 5, None),
        ("bytes=-7", -7, None),
        ("bytes=300000-600000", 300000, 600001),
        ("bytes=999999-", 999999, None),
        ("bytes=0-9999999", 0, None),
    ],
)
def test_a_range(http: httpx.Client, header: str, start: int, end: int | None) -> None:
    data = bytes(n * 7 % 251 for n in range(1_000_000))
    made = upload(http, data)
    answer = http.get(f"/v1/files/{made['id']}/content", headers={"Range": header})
    assert answer.status_code == 206
    assert answer.content == data[start:end]
    first = start % len(data)
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(answer.content) - 1}/1000000"
    assert answer.headers["content-length"] == str(len(answer.content))


def test_the_whole_and_what_cannot_be_had(http: httpx.Client) -> None:
    made = upload(http, b"0123456789", 'a "b".jsonl')
    file = f"/v1/files/{made['id']}/content"
    for headers in ({}, {"Range": "bytes=0-1,4-5"}, {"Range": "bytes=1-2", "If-Range": '"tag"'}):
        answer = http.get(file, headers=headers)
        assert (answer.status_code, answer.content) == (200, b"0123456789")
        assert answer.headers["accept-ranges"] == "bytes"
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20%22b%22.jsonl"
        assert "content-range" not in answer.headers
    answer = http.get(file, headers={"Range": "bytes=10-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10")
    assert answer.json()["error"]["code"] == "range_not_satisfiable"


def test_idempotency_key(http: httpx.Client) -> None:
    first = upload(http, key="k1")
    assert upload(http, key="k1") == first
    for other in ({"data": b"other"}, {"name": "b.jsonl"}):
        assert upload(http, key="k1", **other)["error"]["code"] == "idempotency_conflict"
    assert upload(http, key="k2")["id"] != first["id"]


def test_uploads_with_one_key_at_the_same_time(http: httpx.Client) -> None:
    with ThreadPoolExecutor(6) as pool:
        ids = {made["id"] for made in pool.map(lambda _: upload(http, key="k3"), range(12))}
    assert len(ids) == 1
    assert len(http.get("/v1/files").json()["data"]) == 1


def test_a_file_that_a_batch_reads_is_kept(client: OpenAI, gateway_settings: Settings) -> None:
    made = client.files.create(file=DATA, purpose="batch")
    store = JobStore(gateway_settings)
    uses = f"{store.db.prefix}file_uses:{made.id}"
    store.db.redis.sadd(uses, "batch_a")
    with pytest.raises(openai.ConflictError) as caught:
        client.files.delete(made.id)
    assert caught.value.code == "file_in_use"
    assert client.files.content(made.id).read() == DATA
    store.db.redis.delete(uses)
    assert client.files.delete(made.id).deleted
    store.close()


def test_the_openapi_document_describes_the_upload(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    form = paths["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(form["properties"]) == {"purpose", "file", "expires_after[anchor]", "expires_after[seconds]"}
    assert "/v1/files/{file_id}/content" in paths
