"""Costly tables of four keys, and a small one of a fifth.

No io worker runs: a batch stays as it was created, and its table can be asked for all the same.
"""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import openai
import pytest

from api.requests.table_downloads import MOST_TABLES
from tables.conversion.process import PREVIEW_CPU_S
from tables.conversion.seats import AT_ONCE, LONGEST_TURN_S
from tasks.base.settings import Settings
from tasks.records.api_key import Limits
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.api.routes.batches.table_client import create, upload
from tests.support.workers import wait_until
from tests.tasks.batches.test_table_batches import children

pytestmark = pytest.mark.stack

SOON_S = 3 * LONGEST_TURN_S  # on a machine that does much else; a few seconds on another
LIMIT_S = 250.0
BLANKS = 50_000_000


@pytest.fixture(scope="module")
def costly() -> bytes:
    """Takes minutes to read, and has no row."""
    return gzip.compress(b"a\n", 1) + gzip.compress(b"\n" * BLANKS, 1) * 20


@pytest.fixture
def secrets(gateway_settings: Settings) -> Iterator[list[str]]:
    store = JobStore(gateway_settings)
    yield [KeyStore(store.db).create(f"key{n}", Limits())[1] for n in range(AT_ONCE + 1)]
    store.close()


def requests(gateway: GatewayProcess, secret: str, content: bytes, name: str) -> list[httpx.Request]:
    """For an output table, and for a preview."""
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=0) as client:
        batch = create(client, content, name, template="{{ a }}")
        file = upload(client, content, name)
    auth = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=gateway.url, headers=auth, timeout=LIMIT_S) as http:
        output = http.build_request("GET", f"/v1/batches/{batch.id}/output", params={"format": "csv"})
        body = {"input_file_id": file, "count": True}
        return [output, http.build_request("POST", "/v1/batches/preview", json=body)]


def raw(request: httpx.Request) -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    target = request.url.raw_path.decode()
    return f"{request.method} {target} HTTP/1.1\r\n{head}\r\n".encode() + request.content


def test_costly_tables_of_four_keys_hold_up_a_fifth_for_seconds(
    gateway: GatewayProcess, secrets: list[str], costly: bytes
) -> None:
    small = requests(gateway, secrets[-1], b"a\nx\n", "t.csv")
    large = [requests(gateway, secret, costly, "t.csv.gz") for secret in secrets[:-1]]
    with ExitStack() as opened:
        for output, preview in large:
            for request in [preview, *[output] * (MOST_TABLES - 1)]:
                connection = socket.create_connection(("127.0.0.1", gateway.port))
                opened.enter_context(connection).sendall(raw(request))
        wait_until(lambda: len(children(gateway.pid)) == AT_ONCE)
        took = []
        with httpx.Client() as http:
            for request in small * 3:
                began = time.monotonic()
                answer = http.send(request)
                assert answer.status_code == 200, answer.text
                took.append(time.monotonic() - began)
        assert max(took) < SOON_S, took
        assert len(children(gateway.pid)) >= AT_ONCE - 1, "there was something to wait for"
    wait_until(lambda: not children(gateway.pid))


def test_a_preview_has_little_time(gateway: GatewayProcess, secrets: list[str], costly: bytes) -> None:
    _, preview = requests(gateway, secrets[0], costly, "t.csv.gz")
    with httpx.Client() as http:
        answer = http.send(preview)
    assert answer.status_code == 400
    said = answer.json()["error"]
    assert said["code"] == "invalid_table"
    assert f"more than {PREVIEW_CPU_S} s of processor time" in said["message"]
