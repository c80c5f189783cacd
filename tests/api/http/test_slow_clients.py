"""Clients that send or read slowly or not at all, clients that leave, and too many of them."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tasks.base.settings import Settings
from tests.api.conftest import GatewayProcess
from tests.api.forms import FORM, PURPOSE, form, left_behind
from tests.api.hasty_http import SOON_S
from tests.api.raw_http import Memory, connect, is_closed, read_answer, repeated, reset, send
from tests.support.servers import RedisServer, fast_settings
from tests.support.tuned import constants
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
UPLOAD = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n" % FORM["Content-Type"].encode()
SCRIPT = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"  # more than a megabyte
LARGE = form(PURPOSE, ("file", b"x" * 2_000_000, "a"))
Start = Callable[..., GatewayProcess]


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server)


@pytest.fixture(scope="module")
def start(gateway_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a gateway with a protocol of hasty_http and these variables more."""
    started: list[GatewayProcess] = []

    def start(protocol: str, env: Mapping[str, str] | None = None) -> GatewayProcess:
        http = ["--http", f"tests.api.hasty_http:{protocol}"]
        started.append(GatewayProcess(gateway_settings, tmp_path_factory.mktemp("gateway"), *http, env=env))
        return started[-1]

    yield start
    for each in started:
        assert each.stop() in (0, -15)
        assert "Traceback" not in each.log.read_text()


@pytest.fixture(scope="module")
def gateway(start: Start) -> GatewayProcess:
    return start("HastyHttp")


def drip(connection: socket.socket, byte: bytes) -> None:
    """A byte now and then, until the server answers or closes."""
    connection.settimeout(SOON_S / 10)
    with contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(byte)
            with contextlib.suppress(TimeoutError):
                connection.recv(1, socket.MSG_PEEK)
                break
    connection.settimeout(30)


def test_what_comes_too_slowly(gateway: GatewayProcess, gateway_settings: Settings) -> None:
    for head, byte in (
        (GET + b"X: ", b"a"),
        (GET, b"X:a\r\n"),
        (b"", b"\r\n"),
        (POST + b"Content-Length: 99\r\n\r\n", b" "),
    ):
        with connect(gateway) as connection:
            send(connection, [head])
            drip(connection, byte)
            answer = read_answer(connection)
            assert (answer.status, answer.code) == (408, "request_timeout"), head
            assert answer.headers["connection"] == "close"
            assert is_closed(connection)
    with connect(gateway) as connection:
        send(connection, [UPLOAD + b"Content-Length: %d\r\n\r\n" % len(LARGE), LARGE[:100_000]])
        wait_until(lambda: len(left_behind(gateway_settings)[1]) == 1)
        assert read_answer(connection).code == "request_timeout"
    wait_until(lambda: left_behind(gateway_settings) == ([], [], set()))


def test_what_does_not_come_at_all(gateway: GatewayProcess) -> None:
    with connect(gateway) as connection:
        assert is_closed(connection)
    with connect(gateway) as connection:
        send(connection, [GET + b"Content-Length: 9999999\r\n\r\n"])
        assert read_answer(connection).code == "body_too_large"
        assert is_closed(connection)
    with connect(gateway) as connection:
        send(connection, [GET + b"Content-Length: 9\r\n\r\n"])
        assert read_answer(connection).status == 200
        assert is_closed(connection)


def test_a_body_that_comes_fast_enough(gateway: GatewayProcess) -> None:
    """For longer than a period, in which it advances by more than it must."""
    body = b'{"prompt": "' + b"x" * 40_000 + b'"}'
    with connect(gateway) as connection:
        send(connection, [POST + b"Content-Length: %d\r\n\r\n" % len(body)])
        for n in range(0, len(body), 2000):
            time.sleep(SOON_S / 8)  # a limit on time is under test
            connection.sendall(body[n : n + 2000])
        assert read_answer(connection).status == 202


def test_an_answer_that_nobody_reads(gateway: GatewayProcess) -> None:
    memory = Memory(gateway.pid)
    refused = 'medusaq_http_connections_refused_total{code="answer_unread"}'
    with connect(gateway) as connection:
        send(connection, [SCRIPT * 50])
        wait_until(lambda: f"{refused} 1.0" in gateway.http.get("/metrics").text)
        assert memory.growth_mb() < 32  # of 70 that were asked for


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["fin", "rst"])
def test_a_client_that_leaves_is_one_line(
    gateway: GatewayProcess, leave: Callable[[socket.socket], None]
) -> None:
    """During an upload, the body of a request, a stream, a wait and a download."""
    content = form(PURPOSE, ("file", b"x" * 20_000_000, "a"))
    file = gateway.http.post("/v1/files", content=content, headers=FORM).json()["id"]
    job = gateway.http.post("/v1/jobs", json={"prompt": "hi"}).json()["id"]
    asked = [
        ("POST /v1/files", UPLOAD + b"Content-Length: %d\r\n\r\n" % len(LARGE) + LARGE[:1_000_000]),
        ("POST /v1/jobs", POST + b'Content-Length: 99\r\n\r\n{"prompt'),
        (f"GET /v1/jobs/{job}/events", get(f"/v1/jobs/{job}/events")),
        (f"GET /v1/jobs/{job}", get(f"/v1/jobs/{job}", "Prefer: wait=2\r\n")),
        (f"GET /v1/files/{file}/content", get(f"/v1/files/{file}/content")),
    ]
    for what, request in asked:
        log = Path(gateway.log)
        before = len(log.read_text())
        connection = connect(gateway)
        send(connection, [request])
        if what.endswith(("/events", "/content")):
            connection.recv(100)
        else:
            time.sleep(0.2)  # until the application has it, which shows nothing of that
        leave(connection)
        line = f"INFO:     the client closed the connection before the end of {what}"
        wait_until(partial(said_since, log, before, line))
        said = log.read_text()[before:].splitlines()
        assert [each for each in said if 'HTTP/1.1" ' not in each] == [line]  # beside answers to others


def said_since(log: Path, before: int, line: str) -> bool:
    return line in log.read_text()[before:]


def get(path: str, headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()


def test_a_client_that_leaves_with_requests_sent_ahead(start: Start) -> None:
    """What it waited for is given up, though it was not its last request."""
    gateway = start("BoundedHttp", constants({"api.requests.open_requests.MOST_OPEN": 1}))
    job = gateway.http.post("/v1/jobs", json={"prompt": "hi"}).json()["id"]
    with connect(gateway) as connection:
        send(
            connection,
            [f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), GET + b"\r\n"],
        )
        connection.recv(1)
        assert gateway.http.get("/v1/jobs").status_code == 429
        assert gateway.http.get("/healthz").status_code == 200  # it waits for nobody
    wait_until(lambda: gateway.http.get("/v1/jobs").status_code == 200)


def test_connections_on_which_nothing_is_asked_make_room(start: Start) -> None:
    gateway = start("FewHttp")
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(gateway)) for _ in range(40)]
        for connection in idle[:30]:
            assert is_closed(connection)
        send(idle[-1], [GET + b"\r\n"])
        assert read_answer(idle[-1]).status == 200
        fresh = stack.enter_context(connect(gateway))
        send(fresh, [GET + b"\r\n"])
        assert read_answer(fresh).status == 200


def test_connections_that_are_all_in_use(start: Start) -> None:
    gateway = start("FewHttp")
    job = gateway.http.post("/v1/jobs", json={"prompt": "hi"}).json()["id"].encode()
    gateway.http.close()
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stream = stack.enter_context(connect(gateway))
            send(stream, [b"GET /v1/jobs/%s/events HTTP/1.1\r\nHost: localhost\r\n\r\n" % job])
            assert stream.recv(15) == b"HTTP/1.1 200 OK"
        for _ in range(80):  # some of them beyond those that may linger
            refused = stack.enter_context(connect(gateway))
            answer = read_answer(refused)
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert int(answer.headers["retry-after"]) >= 1
    wait_until(lambda: "200 OK" in _health(gateway))


def _health(gateway: GatewayProcess) -> str:
    with connect(gateway) as connection, contextlib.suppress(ConnectionError):
        send(connection, [GET + b"\r\n"])
        return connection.recv(100).decode()
    return ""


def test_the_system_gives_no_more_descriptors(gateway: GatewayProcess) -> None:
    had = len(list(Path(f"/proc/{gateway.pid}/fd").iterdir()))
    _, hard = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (had + 5, hard))
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connect(gateway))
        wait_until(lambda: len(list(Path(f"/proc/{gateway.pid}/fd").iterdir())) >= had + 4)
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (hard, hard))
    wait_until(lambda: "200 OK" in _health(gateway))


def test_unfinished_heads_of_many_connections(start: Start) -> None:
    """Each may hold 64 KB, for as long as a head may take."""
    gateway = start("BoundedHttp")
    memory = Memory(gateway.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(connect(gateway))
            send(connection, [GET + b"X: ", *repeated(b"a", 60_000)])
        assert "200 OK" in _health(gateway)
        assert memory.growth_mb() < 100 * 0.3
