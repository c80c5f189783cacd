"""50 MB through a gateway whose memory is watched, over a folder and over a bucket."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from openai import OpenAI

from tasks.base.settings import Settings
from tests.api.conftest import GatewayProcess
from tests.support.peers.s3 import S3Server
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import wait_until

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the memory is read in /proc"),
]

SIZE = 50_000_000
GROWTH = 40_000_000  # bytes; a gateway that held the file once would be over it
MB = 1_000_000


class Memory:
    """What a process holds, in bytes; peak is since the last look at the level."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")

    def level(self) -> int:
        (self._proc / "clear_refs").write_text("5")  # proc(5): the peak begins again here
        return self._field("VmRSS")

    def peak(self) -> int:
        return self._field("VmHWM")

    def _field(self, name: str) -> int:
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@pytest.fixture(scope="module", params=["folder", "s3"])
def gateway_settings(request: pytest.FixtureRequest, redis_server: RedisServer) -> Settings:
    if request.param == "folder":
        return fast_settings(redis_server)
    server: S3Server = request.getfixturevalue("s3_server")
    return fast_settings(redis_server, files=f"s3://{server.new_bucket()}")


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[OpenAI]:
    with OpenAI(api_key="none", base_url=f"{gateway.url}/v1", max_retries=0, timeout=60) as client:
        warm = client.files.create(file=os.urandom(6 * MB), purpose="batch")  # connections, buffers, imports
        client.files.content(warm.id).read()
        client.files.delete(warm.id)
        yield client


def test_an_upload_and_a_download_are_streamed(
    client: OpenAI, gateway: GatewayProcess, tmp_path: Path
) -> None:
    path = tmp_path / "large.jsonl"
    path.write_bytes(os.urandom(SIZE))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    memory = Memory(gateway.pid)

    before, started = memory.level(), time.monotonic()
    made = client.files.create(file=path, purpose="batch")
    up, up_s = memory.peak() - before, time.monotonic() - started
    assert made.bytes == SIZE

    before, started = memory.level(), time.monotonic()
    found = hashlib.sha256()
    with client.files.with_streaming_response.content(made.id) as answer:
        for chunk in answer.iter_bytes():
            found.update(chunk)
    down, down_s = memory.peak() - before, time.monotonic() - started
    assert found.hexdigest() == digest
    print(f"\nupload {up / MB:.1f} MB of memory, {up_s:.2f} s; download {down / MB:.1f} MB, {down_s:.2f} s")
    assert up < GROWTH
    assert down < GROWTH
    client.files.delete(made.id)


def test_a_slow_reader_does_not_make_the_gateway_hold_the_file(
    client: OpenAI, gateway: GatewayProcess, gateway_settings: Settings
) -> None:
    """Ten connections that read a little and then nothing; closed, they leave no open file."""
    made = client.files.create(file=os.urandom(SIZE), purpose="batch")
    memory = Memory(gateway.pid)
    before = memory.level()
    host, port = gateway.url.removeprefix("http://").split(":")
    connections = [socket.create_connection((host, int(port))) for _ in range(10)]
    for connection in connections:
        connection.sendall(f"GET /v1/files/{made.id}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
    time.sleep(0.5)
    assert memory.peak() - before < GROWTH
    if not gateway_settings.files.startswith("s3"):
        assert len(open_files(gateway.pid, gateway_settings.files)) == 10
    for connection in connections:
        connection.close()
    wait_until(lambda: open_files(gateway.pid, gateway_settings.files) == [])
    assert client.files.retrieve(made.id).bytes == SIZE
    client.files.delete(made.id)


def open_files(pid: int, folder: str) -> list[str]:
    """Those of a process below a folder."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(folder)]
