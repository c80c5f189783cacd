"""What one connection may take of a gateway: bytes and requests. Times: test_slow_clients.py."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from api.http.connection_limits import Limits
from tests.api.conftest import GatewayProcess
from tests.api.raw_http import Memory, connect, is_closed, read_answer, repeated, send

pytestmark = pytest.mark.stack

FLOOD = 80 * 1024 * 1024
GROWTH_MB = 16  # a fifth of it; a gateway that keeps what it reads grows by all of it and more
OTHERS_S = 1.5  # somebody else's wait beside a flood, on a busy machine
LIMITS = Limits()
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Others:
    """Somebody who asks for /healthz meanwhile."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._url = gateway.url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.worst_s = 0.0
        self.answers = 0

    def __enter__(self) -> Others:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self._stop.wait(0.01):
                began = time.monotonic()
                self.answers += client.get("/healthz").is_success
                self.worst_s = max(self.worst_s, time.monotonic() - began)


@pytest.fixture
def others(gateway: GatewayProcess) -> Iterator[Others]:
    with Others(gateway) as others:
        yield others


@pytest.mark.parametrize(
    ("head", "piece", "status", "code"),
    [
        (GET + b"X: ", b"a", 431, "headers_too_large"),
        (GET, b"X: " + b"a" * 1000 + b"\r\n", 431, "headers_too_large"),
        (GET, b"X:a\r\n", 431, "headers_too_large"),
        (GET, b"x", 431, "headers_too_large"),
        (b"GET /", b"a", 414, "uri_too_long"),
        (b"GET /healthz?", b"a=b&", 414, "uri_too_long"),
        (b"", b"\r\n", 431, "headers_too_large"),
        (CHUNKED + b"0\r\nX: ", b"a", 431, "headers_too_large"),
        (CHUNKED + b"0\r\n", b"X: a\r\n", 431, "headers_too_large"),
        (CHUNKED + b"1;a=", b"a", 431, "headers_too_large"),
        (b"", b"\0", 400, "malformed_request"),
    ],
    ids=[
        "header",
        "headers",
        "count",
        "name",
        "path",
        "query",
        "blank",
        "trailer",
        "trailers",
        "chunk",
        "zeros",
    ],
)
def test_a_head_without_end(
    gateway: GatewayProcess, others: Others, head: bytes, piece: bytes, status: int, code: str
) -> None:
    memory = Memory(gateway.pid)
    with connect(gateway) as connection:
        send(connection, [head])
        send(connection, repeated(piece, FLOOD))
        answer = read_answer(connection)
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert is_closed(connection)
    assert memory.growth_mb() < GROWTH_MB
    assert others.worst_s < OTHERS_S
    assert gateway.http.get("/healthz").is_success


def test_a_body_without_end_that_nobody_reads(gateway: GatewayProcess, others: Others) -> None:
    memory = Memory(gateway.pid)
    with connect(gateway) as connection:
        send(connection, [GET + b"Transfer-Encoding: chunked\r\n\r\n"])
        send(connection, repeated(b"1000\r\n" + b"a" * 4096 + b"\r\n", FLOOD))
        assert read_answer(connection).status == 200
    assert memory.growth_mb() < GROWTH_MB
    assert others.worst_s < OTHERS_S


@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 431)])
def test_bytes_of_a_head(gateway: GatewayProcess, over: int, status: int) -> None:
    """As they are counted: the path and query, and each header with ': ' and the end of its line."""
    counted = len("/healthz") + len("Host: localhost\r\n") + len("X: \r\n")
    value = b"a" * (LIMITS.head_bytes - counted + over)
    with connect(gateway) as connection:
        send(connection, [GET + b"X: " + value + b"\r\n\r\n"])
        answer = read_answer(connection)
    assert answer.status == status


@pytest.mark.parametrize(("headers", "status"), [(LIMITS.headers, 200), (LIMITS.headers + 1, 431)])
def test_number_of_headers(gateway: GatewayProcess, headers: int, status: int) -> None:
    with connect(gateway) as connection:
        send(connection, [GET + b"X: a\r\n" * (headers - 1) + b"\r\n"])
        assert read_answer(connection).status == status


@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 414)])
def test_bytes_of_a_target(gateway: GatewayProcess, over: int, status: int) -> None:
    query = "a" * (LIMITS.target_bytes - len("/healthz?") + over)
    assert gateway.http.get(f"/healthz?{query}").status_code == status


def test_trailers_are_no_headers(gateway: GatewayProcess) -> None:
    """They come when the request may be answered already: as Content-Type one would be believed."""
    body = b'{"prompt": "hi"}'
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    with connect(gateway) as connection:
        send(connection, [CHUNKED.replace(b"Content-Type: application/json\r\n", b"") + chunk])
        send(connection, [b"Content-Type: application/json\r\n\r\n"])
        assert read_answer(connection).status == 415


def test_chunks_of_one_byte_are_no_flood(gateway: GatewayProcess) -> None:
    body = b'{"prompt": "' + b"x" * 3000 + b'"}'
    with connect(gateway) as connection:
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        send(connection, [CHUNKED + chunks + b"0\r\n\r\n"])
        assert read_answer(connection).status == 202


def test_requests_sent_ahead_are_answered_in_order_up_to_a_number(gateway: GatewayProcess) -> None:
    requests = b"".join(b"GET /v1/models/m%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n for n in range(300))
    with connect(gateway) as connection:
        send(connection, [requests])
        for n in range(LIMITS.pipelined + 1):
            answer = read_answer(connection)
            assert answer.status == 404
            assert re.search(rf"\bm{n}\b", answer.body.decode())
        assert answer.headers["connection"] == "close"
        assert is_closed(connection)


def test_requests_sent_ahead_without_end(gateway: GatewayProcess, others: Others) -> None:
    memory = Memory(gateway.pid)
    with connect(gateway) as connection:
        connection.settimeout(0.5)  # it reads no answer, so the server reads no further
        with contextlib.suppress(TimeoutError):
            send(connection, repeated(GET + b"\r\n", FLOOD))
    assert memory.growth_mb() < GROWTH_MB
    assert others.worst_s < OTHERS_S


def test_garbage_behind_a_request_does_not_cut_its_answer(gateway: GatewayProcess) -> None:
    job = gateway.http.post("/v1/jobs", json={"prompt": "hi"}).json()["id"]
    with connect(gateway) as connection:
        send(
            connection,
            [b"GET /v1/jobs/%s HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=1\r\n\r\n\0" % job.encode()],
        )
        answer = read_answer(connection)
        assert answer.status == 200
        assert job in answer.body.decode()
        assert is_closed(connection)


def test_a_malformed_chunk(gateway: GatewayProcess) -> None:
    with connect(gateway) as connection:
        send(connection, [CHUNKED + b"zz\r\n"])
        assert read_answer(connection).code == "malformed_request"
        assert is_closed(connection)


def test_what_clients_may_do(gateway: GatewayProcess) -> None:
    """100-continue, HTTP/1.0, an offer to upgrade, requests one after the other, a blank line between."""
    body = b'{"prompt": "hi"}'
    length = b"Content-Length: %d\r\n" % len(body)
    with connect(gateway) as connection:
        send(connection, [POST + length + b"Expect: 100-continue\r\n\r\n"])
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        send(connection, [body])
        assert read_answer(connection).status == 202
        send(connection, [b"\r\n" + POST + length + b"\r\n", body])
        assert read_answer(connection).status == 202
        send(connection, [GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"])
        assert read_answer(connection).status == 200
        assert is_closed(connection)
    with connect(gateway) as connection:
        send(connection, [b"GET /healthz HTTP/1.0\r\n\r\n"])
        assert read_answer(connection).status == 200
        assert is_closed(connection)


def test_no_body_is_taken_for_a_request(gateway: GatewayProcess) -> None:
    """Of an upgrade the parser does not know where the body begins."""
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(gateway) as connection:
        offer = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        send(connection, [POST + offer + b"Content-Length: %d\r\n\r\n" % len(hidden)])
        send(connection, [hidden])
        assert read_answer(connection).status == 400
        assert is_closed(connection)


def test_no_redirect_names_a_host_that_the_client_sent(gateway: GatewayProcess) -> None:
    answer = gateway.http.get("/v1/jobs/", headers={"Host": "localhost:666"})
    assert answer.status_code == 404
    assert "location" not in answer.headers
    assert "666" not in answer.text
