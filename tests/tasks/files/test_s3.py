"""An S3 server that is away, hangs, refuses, or is full."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tasks.base.errors import FileStoreFull, FileStoreUnavailable
from tasks.files.base import FileStore
from tasks.files.factory import make_store
from tasks.files.s3 import S3Store
from tests.support.files import put
from tests.support.peers.s3 import S3Server
from tests.support.servers import free_port

NAME = "files/file_a"
PART = b"x" * (6 * 1024 * 1024)


@pytest.fixture
def own_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server of the test's own, to stop."""
    server = S3Server()
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    yield server
    server.stop()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Leads the next store to another port."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return lambda port: monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")


def calls(store: FileStore) -> list[Callable[[], object]]:
    return [
        lambda: put(store, NAME),
        lambda: put(store, NAME, PART),
        lambda: store.open(NAME),
        lambda: store.size(NAME),
        lambda: store.read_range(NAME, 0, 1),
        lambda: store.delete(NAME),
        lambda: store.delete(NAME, missing_ok=True),
        lambda: store.list("files"),
        lambda: store.sweep(0),
    ]


@pytest.mark.slow
def test_a_server_that_is_away(elsewhere: Callable[[int], None]) -> None:
    elsewhere(free_port())
    store = make_store("s3://bucket/prefix")
    started = time.monotonic()
    for call in calls(store):
        with pytest.raises(FileStoreUnavailable, match=r"^the file store s3://bucket/prefix: ") as caught:
            call()
        assert "\n" not in str(caught.value)
        assert "Could not connect to the endpoint" in str(caught.value)
    assert time.monotonic() - started < 40
    store.close()


@pytest.mark.slow
def test_a_server_that_goes_away_while_a_file_is_written_and_read(own_s3: S3Server) -> None:
    store = make_store(f"s3://{own_s3.new_bucket()}")
    put(store, "files/file_b", PART)
    reader = store.open("files/file_b")
    assert reader.read(10) == PART[:10]
    new = store.open_new(NAME)
    new.write(PART)
    own_s3.stop()
    with pytest.raises(FileStoreUnavailable, match="Could not connect"):
        new.write(PART)
    new.abort()
    with pytest.raises(FileStoreUnavailable, match="Could not connect"):
        reader.read()
    store.close()


@pytest.mark.slow
def test_a_server_that_never_answers(elsewhere: Callable[[int], None]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        elsewhere(silent.getsockname()[1])
        store = S3Store("s3://bucket/prefix", answer_s=0.2)
        started = time.monotonic()
        with pytest.raises(FileStoreUnavailable, match="Read timeout"):
            store.size(NAME)
        assert time.monotonic() - started < 10
        store.close()


@pytest.mark.usefixtures("s3_server")
def test_a_bucket_that_does_not_exist_is_not_an_object_that_is_missing() -> None:
    store = make_store("s3://no-such-bucket/prefix")
    for call in calls(store):
        with pytest.raises(FileStoreUnavailable, match="The specified bucket does not exist"):
            call()
    store.close()


@contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    """The port of a server that answers everything so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # whose clients wait to be told to send the body

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
def test_a_server_whose_disk_is_full(elsewhere: Callable[[int], None]) -> None:
    """As MinIO answers then; moto keeps everything in memory and is never full."""
    message = "Storage backend has reached its minimum free drive threshold."
    body = f"<Error><Code>XMinioStorageFull</Code><Message>{message}</Message></Error>".encode()
    with answering(507, body) as port:
        elsewhere(port)
        store = make_store("s3://bucket/prefix")
        with pytest.raises(FileStoreFull, match="minimum free drive threshold"):
            put(store, NAME)
        store.close()


@pytest.mark.slow
def test_an_object_that_is_shorter_than_it_was(s3_server: S3Server) -> None:
    store = make_store(f"s3://{s3_server.new_bucket()}")
    put(store, NAME, PART)
    with store.open(NAME) as reader:
        reader.read(10)
        put(store, NAME, PART[:10])
        with pytest.raises(FileStoreUnavailable, match=rf"{NAME} ended \d+ bytes early"):
            reader.read()
    store.close()
