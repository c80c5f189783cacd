"""A key's calls wait for that key's threads, and not for another's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest

from api.app import create_app
from api.requests import threads
from api.requests.threads import (
    FILE_THREADS,
    FILE_THREADS_SHARED,
    MAX_KNOWN_SECRETS,
    THREADS_ONE_KEY,
    THREADS_SHARED,
    FileThreads,
    KeyThreads,
    run_in_threadpool,
)
from tasks.base.settings import Settings
from tasks.records.api_key import Admission, Limits
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore

LIMIT_S = 20.0


class Held:
    """A call that waits until it is let go. running: how many of them have threads."""

    def __init__(self) -> None:
        self.running = 0
        self.let_go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
        self.let_go.wait(LIMIT_S)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.01)


async def request(keys: KeyThreads, key: str, call: Callable[[], object]) -> None:
    with keys.of(key):
        await run_in_threadpool(call)


def test_a_key_whose_threads_are_taken_holds_up_no_other() -> None:
    async def run() -> None:
        keys, held = KeyThreads(), Held()
        await request(keys, "honest", lambda: None)
        hostile = [asyncio.create_task(request(keys, "hostile", held)) for _ in range(400)]
        await until(lambda: held.running == THREADS_SHARED)
        for _ in range(20):
            async with asyncio.timeout(LIMIT_S):
                await request(keys, "honest", lambda: None)
        assert held.running == THREADS_SHARED
        held.let_go.set()
        await asyncio.gather(*hostile)

    asyncio.run(run())


def test_a_key_that_is_alone_has_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SHARING_S", 0.0)

    async def run() -> None:
        keys, held = KeyThreads(), Held()
        only = [asyncio.create_task(request(keys, "only", held)) for _ in range(2 * THREADS_ONE_KEY)]
        await until(lambda: held.running == THREADS_ONE_KEY)
        held.let_go.set()
        await asyncio.gather(*only)

    asyncio.run(run())


def test_strangers_hold_up_no_key() -> None:
    async def ask(keys: KeyThreads, secret: str, call: Callable[[], object]) -> None:
        with keys.of_secret(secret):
            await run_in_threadpool(call)

    async def run() -> None:
        keys, held = KeyThreads(), Held()
        keys.remember("mq_secret", "honest")
        guesses = [asyncio.create_task(ask(keys, f"mq_{n}", held)) for n in range(400)]
        await until(lambda: held.running == THREADS_SHARED)
        for _ in range(20):
            async with asyncio.timeout(LIMIT_S):
                await ask(keys, "mq_secret", lambda: None)
        assert held.running == THREADS_SHARED
        held.let_go.set()
        await asyncio.gather(*guesses)

    asyncio.run(run())


@pytest.mark.stack
def test_keys_that_there_are_not_leave_threads_to_those_that_there_are(
    settings: Settings, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = KeyStore(store.db).create("honest", Limits())
    held, admit = Held(), KeyStore.admit

    def slow(keys: KeyStore, asked: str) -> Admission:
        if asked != secret:
            held()
        return admit(keys, asked)

    monkeypatch.setattr(KeyStore, "admit", slow)

    async def run() -> None:
        app = create_app(settings)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http,
        ):

            async def status(key: str) -> int:
                return (await http.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"})).status_code

            assert await status(secret) == httpx.codes.OK
            guesses = [asyncio.create_task(status(f"mq_{n}")) for n in range(2 * THREADS_ONE_KEY)]
            await until(lambda: held.running == THREADS_SHARED)
            async with asyncio.timeout(LIMIT_S):
                assert await status(secret) == httpx.codes.OK
            assert held.running == THREADS_SHARED
            held.let_go.set()
            assert set(await asyncio.gather(*guesses)) == {httpx.codes.UNAUTHORIZED}

    asyncio.run(run())


def test_the_secrets_that_are_remembered_are_bounded_and_the_latest() -> None:
    async def run() -> None:
        keys, held = KeyThreads(), Held()
        for n in range(MAX_KNOWN_SECRETS):
            keys.remember(f"mq_{n}", f"key_{n}")
        with keys.of_secret("mq_0"):
            pass
        keys.remember("mq_new", "key_new")
        with keys.of_secret("mq_1"):  # the oldest: a stranger again
            waiting = [asyncio.create_task(run_in_threadpool(held)) for _ in range(2 * THREADS_SHARED)]
        await until(lambda: held.running == THREADS_SHARED)
        for secret in ("mq_0", "mq_2", "mq_new"):
            with keys.of_secret(secret):
                async with asyncio.timeout(LIMIT_S):
                    await run_in_threadpool(lambda: None)
        held.let_go.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())


def test_tasks_of_a_request_use_its_key_s_threads_and_nobody_s_the_common_ones() -> None:
    async def run() -> None:
        keys, held, common = KeyThreads(), Held(), Held()
        with keys.of("one"):
            tasks = [asyncio.create_task(run_in_threadpool(held)) for _ in range(2 * THREADS_SHARED)]
        others = [asyncio.create_task(run_in_threadpool(common)) for _ in range(2 * THREADS_SHARED)]
        await until(lambda: common.running == len(others))
        assert held.running == THREADS_SHARED
        held.let_go.set()
        common.let_go.set()
        await asyncio.gather(*tasks, *others)

    asyncio.run(run())


def test_a_key_whose_files_are_slow_leaves_file_threads_to_others() -> None:
    async def run() -> None:
        keys, files, held = KeyThreads(), FileThreads(), Held()

        async def read(key: str, call: Callable[[], object]) -> None:
            with keys.of(key):
                await files.run(call)

        await read("honest", lambda: None)
        hostile = [asyncio.create_task(read("hostile", held)) for _ in range(4 * FILE_THREADS)]
        await until(lambda: held.running == FILE_THREADS_SHARED)
        async with asyncio.timeout(LIMIT_S):
            await read("honest", lambda: None)
        assert held.running == FILE_THREADS_SHARED
        held.let_go.set()
        await asyncio.gather(*hostile)

    asyncio.run(run())
