"""Requests with retries: through pauses, broken transfers and restarts, and not for ever."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from medusaq import requests
from medusaq.connection import AsyncConnection, BlockingConnection
from medusaq.errors import GatewayError, GatewayUnreachable
from medusaq.events import EventReader
from medusaq.requests import Requests
from medusaq.steps import Send, Sleep
from tests.support.peers.troubled import TroubledGateway, troubled_gateway

LINES = [b"%d " % n + b"x" * (n % 50) for n in range(2000)]
CONTENT = b"\n".join(LINES) + b"\n"

Read = Callable[..., list[bytes]]


@pytest.fixture
def server() -> Iterator[TroubledGateway]:
    with troubled_gateway() as server:
        server.content["/file"] = CONTENT
        yield server


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_BACKOFF_S", 0.01)


def read_async(server: TroubledGateway, patience_s: float = 5) -> list[bytes]:
    async def main() -> list[bytes]:
        connection = AsyncConnection(server.url, {})
        try:
            return [line async for line in connection.items(Requests(server.url, patience_s).lines("/file"))]
        finally:
            await connection.close()

    return asyncio.run(main())


def read_blocking(server: TroubledGateway, patience_s: float = 5) -> list[bytes]:
    connection = BlockingConnection(server.url, {})
    try:
        return list(connection.items(Requests(server.url, patience_s).lines("/file")))
    finally:
        connection.close()


@pytest.fixture(params=[read_blocking, read_async], ids=["blocking", "async"])
def read(request: pytest.FixtureRequest) -> Read:
    return request.param  # type: ignore[no-any-return]


def upload(server: TroubledGateway, path: Path) -> Any:
    connection = BlockingConnection(server.url, {})
    try:
        with path.open("rb") as content:
            return connection.run(Requests(server.url, 5).upload(path.name, content, "the-key"))
    finally:
        connection.close()


def test_lines_as_they_stand(server: TroubledGateway, read: Read) -> None:
    assert read(server) == LINES
    assert server.seen == [("/file", None, b"")]


def test_a_file_that_breaks_off_is_gone_on_with(server: TroubledGateway, read: Read) -> None:
    server.breaks = [10_000, 0, 1, 9_999]
    assert read(server) == LINES
    ranges = [header for _, header, _ in server.seen]
    assert ranges == [None, "bytes=10000-", "bytes=10000-", "bytes=10001-", "bytes=20000-"]


def test_where_ranges_are_not_served_what_is_known_is_skipped(server: TroubledGateway, read: Read) -> None:
    server.ranges = False
    server.breaks = [40_000, 30_000, 50_000]
    assert read(server) == LINES


def test_a_last_line_without_its_end(server: TroubledGateway, read: Read) -> None:
    server.content["/file"] = b"one\ntwo"
    assert read(server) == [b"one", b"two"]


def test_refusals_are_raised_and_pauses_waited_for(server: TroubledGateway, read: Read) -> None:
    server.statuses = [503, 429, 404]
    with pytest.raises(GatewayError, match="as 404") as refused:
        read(server)
    assert refused.value.status == 404
    assert len(server.seen) == 3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the client takes for the time."""
    now = [1000.0]
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize("idle", ["before the first request", "between two"])
def test_time_without_requests_is_no_time_without_an_answer(
    server: TroubledGateway, clock: list[float], idle: str
) -> None:
    connection, asking = BlockingConnection(server.url, {}), Requests(server.url)
    server.content["/record"] = b"{}"
    if idle == "between two":
        connection.run(asking.json("GET", "/record"))
    clock[0] += 1e6
    server.statuses = [503, 503]
    assert connection.run(asking.json("GET", "/record")) == {}
    connection.close()


def test_a_long_upload_that_is_refused_is_sent_again(server: TroubledGateway, clock: list[float]) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            clock[0] += 1e6
            return super().read(size)

    connection = BlockingConnection(server.url, {})
    server.statuses = [503, 503]
    assert connection.run(Requests(server.url).upload("a", Slow(CONTENT), "the-key")) == {"id": "file_1"}
    connection.close()


def test_requests_that_fail_together_give_up_together(server: TroubledGateway, clock: list[float]) -> None:
    """And whoever asks later, or after one that was left, has the whole time again."""
    asking = Requests(server.url)
    flows = [asking.json("GET", "/record") for _ in range(3)]
    for flow in flows:
        next(flow)
    for _ in range(2):
        for flow in flows:
            assert isinstance(flow.throw(httpx.ConnectError("refused")), Sleep)
        clock[0] += 6.0
        for flow in flows:
            assert isinstance(flow.send(None), Send)
    for flow in flows[1:]:
        with pytest.raises(GatewayUnreachable, match="for 10 s: connection refused"):
            flow.throw(httpx.ConnectError("refused"))
    flows[0].close()
    later = asking.json("GET", "/record")
    next(later)
    assert isinstance(later.throw(httpx.ConnectError("refused")), Sleep)


def test_a_file_that_never_goes_on_is_given_up(server: TroubledGateway, read: Read) -> None:
    server.breaks = [5000] + [0] * 1000
    began = time.monotonic()
    with pytest.raises(GatewayUnreachable, match=r"no answer from the gateway at .* for 0 s"):
        read(server, patience_s=0.3)
    assert 0.3 < time.monotonic() - began < 20


def test_an_upload_is_repeated_whole_under_its_key(server: TroubledGateway, tmp_path: Path) -> None:
    (tmp_path / "000001.jsonl").write_bytes(CONTENT)
    server.statuses = [503, 502]
    assert upload(server, tmp_path / "000001.jsonl") == {"id": "file_1"}
    assert [(path, key) for path, key, _ in server.seen] == [("/v1/files", "the-key")] * 3
    for _, _, body in server.seen:
        assert CONTENT in body
        assert b'filename="000001.jsonl"' in body
        assert b'name="purpose"\r\n\r\nbatch\r\n' in body


def test_a_store_that_is_full_is_no_reason_to_wait(server: TroubledGateway, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    server.statuses = [507]
    with pytest.raises(GatewayError, match="as 507"):
        upload(server, tmp_path / "a")


def test_a_stream_that_is_left_is_closed(server: TroubledGateway) -> None:
    connection = BlockingConnection(server.url, {})
    lines = connection.items(Requests(server.url, 5).lines("/file"))
    assert next(lines) == LINES[0]
    lines.close()
    assert connection.run(Requests(server.url).once("GET", "/file")).content == CONTENT
    connection.close()


def test_events_are_read_from_blocks_that_end_anywhere() -> None:
    text = (
        'event: status\ndata: {"id":"j"}\n\n: ping\r\n\r\nevent: text\r\ndata: {"text":"ä: b"}\n\n'.encode()
    )
    reader = EventReader()
    found = [event for byte in io.BytesIO(text).read() for event in reader.read(bytes([byte]))]
    assert found == EventReader().read(text) == [("status", {"id": "j"}), ("text", {"text": "ä: b"})]
