"""A key's calls wait for that key's threads, and not for another's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from api import threads
from api.threads import (
    FILE_THREADS,
    FILE_THREADS_BESIDE,
    THREADS_ALONE,
    THREADS_BESIDE,
    FileThreads,
    KeyThreads,
    run_in_threadpool,
)

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
        await until(lambda: held.running == THREADS_BESIDE)
        for _ in range(20):
            async with asyncio.timeout(LIMIT_S):
                await request(keys, "honest", lambda: None)
        assert held.running == THREADS_BESIDE
        held.let_go.set()
        await asyncio.gather(*hostile)

    asyncio.run(run())


def test_a_key_that_is_alone_has_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BESIDE_S", 0.0)

    async def run() -> None:
        keys, held = KeyThreads(), Held()
        only = [asyncio.create_task(request(keys, "only", held)) for _ in range(2 * THREADS_ALONE)]
        await until(lambda: held.running == THREADS_ALONE)
        held.let_go.set()
        await asyncio.gather(*only)

    asyncio.run(run())


def test_tasks_of_a_request_use_its_key_s_threads_and_nobody_s_the_common_ones() -> None:
    async def run() -> None:
        keys, held, common = KeyThreads(), Held(), Held()
        with keys.of("one"):
            tasks = [asyncio.create_task(run_in_threadpool(held)) for _ in range(2 * THREADS_BESIDE)]
        others = [asyncio.create_task(run_in_threadpool(common)) for _ in range(2 * THREADS_BESIDE)]
        await until(lambda: common.running == len(others))
        assert held.running == THREADS_BESIDE
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
        await until(lambda: held.running == FILE_THREADS_BESIDE)
        async with asyncio.timeout(LIMIT_S):
            await read("honest", lambda: None)
        assert held.running == FILE_THREADS_BESIDE
        held.let_go.set()
        await asyncio.gather(*hostile)

    asyncio.run(run())
