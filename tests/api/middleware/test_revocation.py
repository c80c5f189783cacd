"""A key that is revoked while its requests are under way: they end within seconds, those of others go on."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from starlette.types import Message

from api.http.errors import BadKey
from api.requests.open_requests import CHECK_S, OpenKey, OpenRequests
from api.service.file_response import Download
from tasks.base.settings import Settings
from tasks.records.api_key import Limits
from tasks.records.job import Status
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.api.forms import FORM, PURPOSE, form, left_behind
from tests.support.workers import Workers, wait_until

pytestmark = pytest.mark.stack

SOON_S = 20.0  # far above CHECK_S, for a busy machine
LONG = "word stream=400 delay=60"  # far above SOON_S
CHAT = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1000}


@dataclass
class Holder:
    """A key of this test's own, a client that sends it, and the store."""

    http: httpx.Client
    key_id: str
    secret: str
    store: JobStore
    url: str

    def revoke(self) -> None:
        KeyStore(self.store.db).revoke(self.key_id)

    def job(self) -> str:
        """One that runs."""
        sent = {"prompt": LONG, "max_tokens": 1000}
        job_id: str = self.http.post("/v1/jobs", json=sent).json()["id"]
        wait_until(lambda: self.store.get(job_id).status is Status.RUNNING, SOON_S)
        return job_id

    def jobs(self) -> list[str]:
        return [job.status.value for job in self.store.page(10, owner=self.key_id).jobs]


@pytest.fixture
def make(
    gateway: GatewayProcess, gateway_settings: Settings, model_worker: Workers
) -> Iterator[Callable[[], Holder]]:
    assert model_worker.all
    store = JobStore(gateway_settings)
    made: list[Holder] = []

    def holder() -> Holder:
        key, secret = KeyStore(store.db).create("test", Limits())
        bearer = {"Authorization": f"Bearer {secret}"}
        client = httpx.Client(base_url=gateway.url, headers=bearer, timeout=60)
        made.append(Holder(client, key.id, secret, store, gateway.url))
        wait_until(lambda: client.get("/v1/models").json()["data"], SOON_S)
        return made[-1]

    yield holder
    for each in made:
        for job in store.page(10, owner=each.key_id).jobs:
            store.cancel(job.id)
        wait_until(lambda each=each: not {"queued", "running"} & set(each.jobs()), SOON_S)
        each.http.close()
    store.close()


@pytest.fixture
def holder(make: Callable[[], Holder]) -> Holder:
    return make()


def refused(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), answer.text


def test_events_of_a_job_end_and_the_job_goes_on(make: Callable[[], Holder]) -> None:
    holder, other = make(), make()
    mine, others = holder.job(), other.job()
    with (
        other.http.stream("GET", f"/v1/jobs/{others}/events") as going_on,
        holder.http.stream("GET", f"/v1/jobs/{mine}/events") as answer,
    ):
        lines, other_lines = answer.iter_lines(), going_on.iter_lines()
        for each in (lines, other_lines):
            next(line for line in each if "event: text" in line)
        holder.revoke()
        began = time.monotonic()
        rest = list(lines)
        assert time.monotonic() - began < SOON_S
        assert "event: error" in rest
        last = json.loads(next(line for line in reversed(rest) if line).removeprefix("data: "))
        assert last["error"]["code"] == "invalid_api_key"
        assert holder.store.get(mine).status is Status.RUNNING, "what it has sent goes on"
        next(line for line in other_lines if "event: text" in line)


def test_a_streamed_answer_ends_with_an_error_and_its_job_is_cancelled(holder: Holder) -> None:
    with openai.OpenAI(base_url=f"{holder.url}/v1", api_key=holder.secret, max_retries=0) as client:
        stream = client.chat.completions.create(**CHAT, model="scripted", stream=True)  # type: ignore[call-overload]
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        holder.revoke()
        with pytest.raises(openai.APIError, match="the API key was revoked"):
            list(stream)
    wait_until(lambda: holder.jobs() == ["cancelled"], SOON_S)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_awaited_answer_is_refused_and_its_job_is_cancelled(holder: Holder, path: str) -> None:
    body = CHAT if "chat" in path else {"prompt": LONG, "max_tokens": 1000}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(holder.http.post, path, json=body)
        wait_until(lambda: holder.jobs() == ["running"], SOON_S)
        holder.revoke()
        refused(answer.result(SOON_S))
    wait_until(lambda: holder.jobs() == ["cancelled"], SOON_S)


@pytest.mark.parametrize("how", ["GET", "POST", "generate"])
def test_who_waits_for_a_job_is_refused_and_the_job_goes_on(holder: Holder, how: str) -> None:
    wait = {"Prefer": "wait=20"}
    with ThreadPoolExecutor(1) as pool:
        if how == "GET":
            answer = pool.submit(holder.http.get, f"/v1/jobs/{holder.job()}", headers=wait)
            time.sleep(0.2)
        elif how == "POST":
            body = {"prompt": LONG, "max_tokens": 1000}
            answer = pool.submit(holder.http.post, "/v1/jobs", json=body, headers=wait)
        else:
            body = {"prompt": LONG, "max_length": 1000}
            answer = pool.submit(holder.http.post, "/generate/normal", json=body, headers=wait)
        wait_until(lambda: holder.jobs() == ["running"], SOON_S)
        holder.revoke()
        refused(answer.result(15))  # before its wait is over
    assert holder.jobs() == ["running"]


@pytest.mark.parametrize("silent", [False, True])
def test_an_upload_is_refused_and_nothing_of_it_stays(
    holder: Holder, gateway_settings: Settings, silent: bool
) -> None:
    before = left_behind(gateway_settings)
    body = form(PURPOSE, ("file", b"x" * 100_000, "a"))
    revoked = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield body[:50_000]
        wait_until(lambda: left_behind(gateway_settings)[1], SOON_S)
        holder.revoke()
        revoked.set()
        give_up = time.monotonic() + SOON_S
        while not silent and time.monotonic() < give_up:
            yield b"x"
            time.sleep(0.1)
        time.sleep(5 * CHECK_S)

    with socket.create_connection(("127.0.0.1", httpx.URL(holder.url).port or 0), SOON_S) as raw:
        head = f"POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {holder.secret}\r\n"
        head += f"Content-Type: {FORM['Content-Type']}\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode())
        sending = pieces()
        raw.sendall(next(sending))
        raw.settimeout(0.05)
        answer = b""
        give_up = time.monotonic() + SOON_S
        for piece in sending:
            with_suppressed(lambda piece=piece: raw.sendall(piece))
            answer += with_suppressed(lambda: raw.recv(10_000)) or b""
            if answer or time.monotonic() > give_up:
                break
        else:
            answer += with_suppressed(lambda: raw.recv(10_000)) or b""
    assert revoked.is_set()
    assert answer.startswith(b"HTTP/1.1 401 "), answer
    wait_until(lambda: left_behind(gateway_settings) == before, SOON_S)


def with_suppressed(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except OSError:
        return None


def test_a_body_that_began_before_makes_no_job(holder: Holder) -> None:
    body = json.dumps({"prompt": "x"}).encode()

    def pieces() -> Iterator[bytes]:
        yield body[:5]
        holder.revoke()
        time.sleep(3 * CHECK_S)
        yield body[5:]

    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    refused(holder.http.post("/v1/jobs", content=pieces(), headers=headers))
    assert holder.jobs() == []


def test_a_download_is_broken_off(holder: Holder, gateway: GatewayProcess) -> None:
    size = 40_000_000  # more than sockets hold
    parts = form(PURPOSE, ("file", b"x" * size, "a"))
    file_id = holder.http.post("/v1/files", content=parts, headers=FORM).json()["id"]
    with holder.http.stream("GET", f"/v1/files/{file_id}/content") as answer:
        lengths = map(len, answer.iter_bytes(100_000))
        assert next(lengths)
        holder.revoke()
        time.sleep(3 * CHECK_S)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lengths)
        assert 0 < answer.num_bytes_downloaded < size
    assert "Traceback" not in gateway.log.read_text()


def test_a_download_that_nobody_reads_is_given_up() -> None:
    asyncio.run(asyncio.wait_for(_give_up_a_download(), SOON_S))


async def _give_up_a_download() -> None:
    key = OpenKey()
    sending = asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            await asyncio.Event().wait()  # a client that does not read

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x"

    scope = {"type": "http", "asgi": {"version": "3.0"}}
    download = asyncio.create_task(Download(chunks(), key)(scope, receive, send))
    await sending.wait()
    key.revoke()
    await download


def test_redis_is_asked_once_a_second_however_many_requests_are_open(settings: Settings) -> None:
    asyncio.run(_ask_once_a_second(settings))


async def _ask_once_a_second(settings: Settings) -> None:
    store = JobStore(settings)
    asked: list[Collection[str]] = []

    class Counting(KeyStore):
        def revoked(self, key_ids: Collection[str]) -> set[str]:
            asked.append(key_ids)
            return super().revoked(key_ids)

    keys = Counting(store.db)
    ids = [keys.create(f"{n}", Limits())[0].id for n in range(3)]
    requests = OpenRequests(keys)
    requests.start()
    await asyncio.sleep(1.5 * CHECK_S)
    assert asked == [], "nothing is open"
    opened = [requests.enter(key_id) for key_id in ids for _ in range(50)]
    waits = [asyncio.create_task(key.unless_revoked(asyncio.sleep(60))) for key in opened]
    keys.revoke(ids[0])
    done, _ = await asyncio.wait(waits[:50], timeout=SOON_S)
    assert len(done) == 50
    assert all(isinstance(wait.exception(), BadKey) for wait in done)
    assert not any(wait.done() for wait in waits[50:])
    assert 1 <= len(asked) <= 3
    for wait in waits[50:]:
        wait.cancel()
    await requests.stop()
    store.close()


def test_what_a_wait_raises_by_itself_is_its_own() -> None:
    asyncio.run(_wait())


async def _wait() -> None:
    key = OpenKey()
    with pytest.raises(TimeoutError):
        await key.unless_revoked(asyncio.wait_for(asyncio.sleep(10), 0.01))
    assert await key.unless_revoked(asyncio.sleep(0, "x")) == "x"
    key.revoke()
    with pytest.raises(BadKey):
        await key.unless_revoked(asyncio.sleep(0, "x"))
