"""Uploads that break off, and stores that fail under them: a clear answer, and nothing stays."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tasks.base.settings import Settings
from tasks.files.factory import make_store
from tests.api.conftest import GatewayProcess
from tests.api.forms import FILE, FORM, PURPOSE, form, left_behind
from tests.api.requests.test_bad_input import error
from tests.support.peers.s3 import S3Server
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack

HEAD = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM['Content-Type']}\r\n"
LARGE = form(PURPOSE, ("file", b"x" * 200_000, "a"))


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server)


@pytest.fixture(autouse=True)
def _nothing_stays(gateway: GatewayProcess, gateway_settings: Settings) -> Iterator[None]:
    yield
    assert left_behind(gateway_settings) == ([], [], set())
    assert "Traceback" not in gateway.log.read_text()


@pytest.mark.parametrize("declared", [True, False], ids=["content-length", "chunked"])
def test_an_upload_whose_socket_closes_half_way(
    gateway: GatewayProcess, gateway_settings: Settings, declared: bool
) -> None:
    length = f"Content-Length: {len(LARGE)}" if declared else "Transfer-Encoding: chunked"
    half = LARGE[: len(LARGE) // 2]
    if not declared:
        half = b"%x\r\n%s\r\n" % (len(half), half)
    head = f"{HEAD}{length}\r\n\r\n"
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + half)
        wait_until(lambda: len(left_behind(gateway_settings)[1]) == 1)
    wait_until(lambda: left_behind(gateway_settings) == ([], [], set()))
    assert gateway.http.get("/v1/files").json()["data"] == []


def test_a_stopped_gateway_leaves_no_half_upload(redis_server: RedisServer, tmp_path: Path) -> None:
    settings = fast_settings(redis_server, files=str(tmp_path / "files"))
    gateway = GatewayProcess(settings, tmp_path)
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{HEAD}Content-Length: 1000000\r\n\r\n".encode() + form(PURPOSE, FILE)[:-9])
        wait_until(lambda: len(left_behind(settings)[1]) == 1)
        connection.shutdown(socket.SHUT_WR)
        wait_until(lambda: left_behind(settings) == ([], [], set()))
    assert gateway.stop() in (0, -15)


def answer_of(settings: Settings, folder: Path, limit: int | None = None) -> tuple[httpx.Response, str]:
    """To an upload of 200,000 bytes by a gateway of these settings, and its log."""
    gateway = GatewayProcess(settings, folder)
    if limit is not None:
        resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (limit, limit))
    response = gateway.http.post(
        "/v1/files", content=form(PURPOSE, ("file", b"x" * 200_000, "a")), headers=FORM
    )
    assert gateway.http.get("/healthz").status_code == 200
    gateway.stop()
    return response, gateway.log.read_text()


def test_a_full_disk(redis_server: RedisServer, tmp_path: Path) -> None:
    """A limit on the size of a file stands for it: the write fails in the same place. (ENOSPC itself:
    tests/tasks/files/test_local.py.)"""
    settings = fast_settings(redis_server, files=str(tmp_path / "files"))
    response, log = answer_of(settings, tmp_path, limit=100_000)
    found = error(response, 507)
    assert found["code"] == "storage_full"
    assert "delete files" in found["message"]
    assert settings.files in log, "where it is, is for the log"
    assert settings.files not in response.text
    assert left_behind(settings) == ([], [], set())


def test_a_folder_that_cannot_be_used(redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file")
    response, log = answer_of(fast_settings(redis_server, files=str(tmp_path / "files")), tmp_path)
    assert error(response, 503)["code"] == "file_store_unavailable"
    assert str(tmp_path) not in response.text
    assert int(response.headers["retry-after"]) >= 1
    assert "Traceback" not in log


def test_an_s3_server_that_is_away(
    redis_server: RedisServer, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = fast_settings(redis_server, files=f"s3://{s3_server.new_bucket()}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    response, log = answer_of(settings, tmp_path)
    found = error(response, 503)
    assert found["code"] == "file_store_unavailable"
    assert "Could not connect" in log
    assert "127.0.0.1" not in found["message"]
    assert "Traceback" not in log


def test_redis_is_away(own_redis: RedisServer, tmp_path: Path) -> None:
    settings = fast_settings(own_redis, files=str(tmp_path / "files"))
    gateway = GatewayProcess(settings, tmp_path)
    own_redis.stop()
    for response in (
        gateway.http.post("/v1/files", content=form(PURPOSE, FILE), headers=FORM),
        gateway.http.get("/v1/files"),
        gateway.http.get("/v1/files/file_a"),
        gateway.http.get("/v1/files/file_a/content"),
        gateway.http.delete("/v1/files/file_a"),
    ):
        assert error(response, 503)["code"] == "store_unavailable"
    assert make_store(settings.files).list("files") == []
    gateway.stop()


def test_a_file_whose_content_somebody_removed(http: httpx.Client, gateway_settings: Settings) -> None:
    file = http.post("/v1/files", content=form(PURPOSE, FILE), headers=FORM).json()["id"]
    make_store(gateway_settings.files).delete(f"files/{file}")
    assert error(http.get(f"/v1/files/{file}/content"), 500)["code"] == "file_content_missing"
    assert http.delete(f"/v1/files/{file}").json()["deleted"] is True
