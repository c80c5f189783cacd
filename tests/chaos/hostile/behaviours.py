"""What a hostile key does: each behaviour is a coroutine that goes on until it is cancelled.

Rates are bounded, so that a machine of two cores serves them besides what is measured: the question is whom
the system serves first, not how much a core can do.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from tasks.records.job import NewJob
from tasks.store.api_keys import SECRET_PREFIX
from tasks.store.jobs import JobStore
from tests.chaos.hostile.wire import ANSWER_S, Connection, Pace, Peer

Act = Callable[[Peer], Awaitable[None]]
Before = Callable[[JobStore, str], None]  # with the id of the key
LOST = (OSError, TimeoutError, asyncio.IncompleteReadError)
PAUSE_S = 0.1  # before a connection that was lost is opened again
MB = 1_000_000
FLOOD_PER_S = 100.0
UNBOUNDED = 1e6
NEWLINES = 12 * MB  # bytes of a file
BATCHES = 10
UPLOAD = 100 * MB
LISTED = 5000  # jobs
UPLOAD_BYTES_PER_S = 40 * MB
BOUNDARY = "hostile"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """title: of its row. limited: its key may send few requests a minute. before: makes its records.

    fills_slots: its jobs run in all slots, so that another job waits until one of them ends.
    """

    title: str
    act: Act
    limited: bool = False
    before: Before | None = None
    fills_slots: bool = False


BEHAVIOURS: dict[str, Behaviour] = {}
ALL = "all"  # fills both cores, of which an honest key has what is left


def behaviour(
    name: str, title: str, limited: bool = False, before: Before | None = None, fills_slots: bool = False
) -> Callable[[Act], Act]:
    def note(act: Act) -> Act:
        BEHAVIOURS[name] = Behaviour(title, act, limited, before, fills_slots)
        return act

    return note


async def lasting(peer: Peer, use: Callable[[Connection], Awaitable[None]], count: int) -> None:
    """So many connections at once, each used again and again, and opened again when it is lost."""

    async def one() -> None:
        while True:
            with suppress(*LOST):
                async with peer.connected() as connection:
                    while True:
                        await use(connection)
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(one())


async def repeating(peer: Peer, request: bytes, count: int, per_s: float) -> None:
    pace = Pace(per_s)

    async def use(connection: Connection) -> None:
        await pace.turn()
        await connection.ask(request)

    await lasting(peer, use, count)


async def _flood(peer: Peer) -> None:
    await repeating(peer, peer.request("POST", "/v1/jobs", {"prompt": "flood"}), 32, FLOOD_PER_S)


behaviour("flood", "100 jobs a second on 32 connections")(_flood)
behaviour("flood-limited", "the same with 600 requests a minute", limited=True)(_flood)


@behaviour("crowd", "jobs asked for on 400 connections, without a pause")
async def crowd(peer: Peer) -> None:
    job_id = (await peer.once(peer.request("POST", "/v1/jobs", {"prompt": "looked at"})))["id"]
    await repeating(peer, peer.request("GET", f"/v1/jobs/{job_id}"), 400, UNBOUNDED)


@behaviour("strangers", "the same with an API key that there is not")
async def strangers(peer: Peer) -> None:
    stranger = replace(peer, key=f"{SECRET_PREFIX}{'0' * 43}")
    await repeating(stranger, stranger.request("GET", "/v1/jobs"), 400, UNBOUNDED)


@behaviour("long-jobs", "jobs of 2 s each, 10 a second")
async def long_jobs(peer: Peer) -> None:
    await repeating(peer, peer.request("POST", "/v1/jobs", {"prompt": "delay=2 long"}), 4, 10.0)


@behaviour("more-than-runs", "jobs of 1 s each, 60 a second: more than the workers run", fills_slots=True)
async def more_than_runs(peer: Peer) -> None:
    await repeating(peer, peer.request("POST", "/v1/jobs", {"prompt": "delay=1 more"}), 8, 60.0)


@behaviour("choices", "completions with `n=60` and prompts of 250 kB, two at a time", fills_slots=True)
async def choices(peer: Peer) -> None:
    """Just within the limit of prompts times answers."""
    body = {"prompt": f"unsaid={'x' * (MB // 4)}", "n": 60}  # answers as short as a model's would be
    await repeating(peer, peer.request("POST", "/v1/completions", body), 2, 2.0)


@behaviour("dry-runs", "ten dry runs over 12 MB of newlines, cancelled at once, again and again")
async def dry_runs(peer: Peer) -> None:
    file_id = (await peer.once(upload(peer, b"\n" * NEWLINES)))["id"]
    asked = {"input_file_id": file_id, "endpoint": "/v1/jobs", "completion_window": "24h", "dry_run": True}
    create = peer.request("POST", "/v1/batches", asked)

    async def use(connection: Connection) -> None:
        made = [(await connection.ask(create) or {}).get("id") for _ in range(BATCHES)]
        for batch_id in filter(None, made):
            await connection.ask(peer.request("POST", f"/v1/batches/{batch_id}/cancel"))
        await asyncio.sleep(1)

    await lasting(peer, use, 1)


def form_head() -> bytes:
    fields = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="f.jsonl"\r\n\r\n'
    )
    return fields.encode()


def upload(peer: Peer, content: bytes) -> bytes:
    body = form_head() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
    return peer.request("POST", "/v1/files", body, kind)


@behaviour("uploads", "uploads of 100 MB, two at a time at 20 MB/s each, deleted at once")
async def uploads(peer: Peer) -> None:
    whole, step = upload(peer, b"x" * UPLOAD), MB // 4
    pace = Pace(UPLOAD_BYTES_PER_S / step)

    async def use(connection: Connection) -> None:
        for start in range(0, len(whole), step):
            await pace.turn()
            connection.writer.write(whole[start : start + step])
            await connection.writer.drain()
        made = await connection.answer() or {}
        if file_id := made.get("id"):  # else it was refused
            await connection.ask(peer.request("DELETE", f"/v1/files/{file_id}"))

    await lasting(peer, use, 2)


@behaviour("slow-uploads", "300 uploads of ten bytes a second each")
async def slow_uploads(peer: Peer) -> None:
    kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
    head = peer.head("POST", "/v1/files", f"Content-Length: {MB}", kind) + b"\r\n" + form_head()
    await dripping(peer, head, b"0123456789", 300)


@behaviour("slow-bodies", "300 bodies of JSON of ten bytes a second each")
async def slow_bodies(peer: Peer) -> None:
    kind = ("Content-Type: application/json", f"Content-Length: {MB}")
    head = peer.head("POST", "/v1/jobs", *kind) + b'\r\n{"prompt": "'
    await dripping(peer, head, b"0123456789", 300)


@behaviour("slow-heads", "300 heads of ten bytes a second each")
async def slow_heads(peer: Peer) -> None:
    await dripping(peer, peer.head("GET", "/v1/jobs") + b"x: ", b"0123456789", 300)


async def dripping(peer: Peer, head: bytes, drip: bytes, count: int) -> None:
    async def use(connection: Connection) -> None:
        connection.writer.write(head)
        answered = asyncio.ensure_future(connection.answer())
        try:
            while not answered.done():
                connection.writer.write(drip)
                await connection.writer.drain()
                await asyncio.wait([answered], timeout=1.0)
            answered.result()
        finally:
            answered.cancel()
        raise ConnectionError  # the rest of the body would be no request

    await lasting(peer, use, count)


@behaviour("headers", "headers without end, at 20 MB/s on four connections")
async def headers(peer: Peer) -> None:
    step, pace = b"x: " + b"y" * 65_536 + b"\r\n", Pace(20 * MB / 65_536)

    async def use(connection: Connection) -> None:
        connection.writer.write(peer.head("GET", "/healthz"))
        answered = asyncio.ensure_future(connection.answer())
        try:
            for _ in range(80 * MB // len(step)):
                await pace.turn()
                if answered.done():
                    break
                connection.writer.write(step)
                await connection.writer.drain()
            else:
                connection.writer.write(b"\r\n")
            await answered
        finally:
            answered.cancel()

    await lasting(peer, use, 4)


@behaviour("unread-streams", "streams of 1 MB each that nobody reads, up to 200 open")
async def unread_streams(peer: Peer) -> None:
    said = [{"role": "user", "content": f"delay=0.1 chunks=4 stream=10000 {'x' * 99}"}]
    request = peer.request("POST", "/v1/chat/completions", {"messages": said, "stream": True})
    pace = Pace(10.0)

    async def one() -> None:
        while True:
            await pace.turn()
            with suppress(*LOST), socket.socket() as small:
                small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                small.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(small, (peer.host, peer.port))
                await loop.sock_sendall(small, request)
                first = await loop.sock_recv(small, 12)
                peer.answers[f"{chr(first[9])}xx" if first else "closed"] += 1
                await asyncio.sleep(ANSWER_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(200):
            tasks.create_task(one())


@behaviour("waits", "600 requests with `Prefer: wait=60` for one long job")
async def waits(peer: Peer) -> None:
    job_id = (await peer.once(peer.request("POST", "/v1/jobs", {"prompt": "delay=60 long"})))["id"]
    await repeating(
        peer, peer.request("GET", f"/v1/jobs/{job_id}", None, "Prefer: wait=60"), 600, FLOOD_PER_S
    )


TAGS = [f"{'k' * 60}{n:02}" for n in range(16)]
ASKED = dict.fromkeys(TAGS, "v" * 500)


def listed(store: JobStore, owner: str) -> None:
    """Each of these jobs lacks one pair of what is asked for. They have ended, so that none has to run;
    nobody serves their model."""
    store.db.redis.zadd(f"{store.db.prefix}models", {"gone": 1})
    for n in range(LISTED // 100):
        metadata = {**ASKED, TAGS[n % 2]: "other"}
        new = NewJob(request={"prompt": "listed"}, owner=owner, metadata=metadata, model="gone")
        for job in store.create_all(new, [{"seed": seed} for seed in range(100)]):
            store.cancel(job.id)


@behaviour(
    "lists", "lists filtered by 8 kB of metadata that 5,000 jobs have, on eight connections", before=listed
)
async def lists(peer: Peer) -> None:
    query = "&".join(f"metadata[{name}]={value}" for name, value in ASKED.items())
    await repeating(peer, peer.request("GET", f"/v1/jobs?limit=100&{query}"), 8, FLOOD_PER_S)


@behaviour("deep-json", "bodies of 4 MB of nested JSON, on eight connections")
async def deep_json(peer: Peer) -> None:
    bodies = itertools.cycle((b"[" * (4 * MB), b'{"prompt":' * (4 * MB // 10), b'{"a":1,' * (4 * MB // 7)))
    sent = [
        peer.request("POST", "/v1/jobs", next(bodies), "Content-Type: application/json") for _ in range(3)
    ]
    turns, pace = itertools.cycle(sent), Pace(10.0)

    async def use(connection: Connection) -> None:
        await pace.turn()
        await connection.ask(next(turns))

    await lasting(peer, use, 8)


@behaviour("cancels", "jobs created, cancelled and deleted, on eight connections")
async def cancels(peer: Peer) -> None:
    create, pace = peer.request("POST", "/v1/jobs", {"prompt": "delay=5 dropped"}), Pace(FLOOD_PER_S / 3)

    async def use(connection: Connection) -> None:
        await pace.turn()
        made = await connection.ask(create)
        if job_id := (made or {}).get("id"):
            await connection.ask(peer.request("POST", f"/v1/jobs/{job_id}/cancel"))
            await connection.ask(peer.request("DELETE", f"/v1/jobs/{job_id}"))

    await lasting(peer, use, 8)


@behaviour("hooks-silent", "20 jobs a second with webhooks to 64 hosts that never answer")
async def hooks_silent(peer: Peer) -> None:
    await _hooks(peer, b"")


@behaviour("hooks-interim", "the same to hosts that send 1xx answers without end")
async def hooks_interim(peer: Peer) -> None:
    await _hooks(peer, b"HTTP/1.1 100 Continue\r\n\r\n" * 40_000)


async def _hooks(peer: Peer, said: bytes) -> None:
    async with _receiving(said, 64) as urls:
        turns, pace = itertools.cycle(urls), Pace(20.0)

        async def use(connection: Connection) -> None:
            await pace.turn()
            body = {"prompt": "told", "webhook": {"url": next(turns)}}
            await connection.ask(peer.request("POST", "/v1/jobs", body))

        await lasting(peer, use, 4)


@asynccontextmanager
async def _receiving(said: bytes, hosts: int) -> AsyncIterator[list[str]]:
    """Receivers that say this for ever, each on a host of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*LOST, asyncio.CancelledError):  # it ends with the process
            await reader.read(65_536)
            while said:
                writer.write(said)
                await writer.drain()
            await reader.read(1)
        writer.transport.abort()

    servers = [await asyncio.start_server(serve, f"127.1.0.{n + 1}", 0) for n in range(hosts)]
    try:
        yield ["http://{}:{}/".format(*server.sockets[0].getsockname()) for server in servers]
    finally:
        for server in servers:
            server.close()


@behaviour(ALL, "all of these at once")
async def everything(peer: Peer) -> None:
    async with asyncio.TaskGroup() as tasks:
        for name, one in BEHAVIOURS.items():
            if name != ALL:
                tasks.create_task(_as_task(one.act, peer))


async def _as_task(act: Act, peer: Peer) -> None:
    with suppress(*LOST):
        await act(peer)
