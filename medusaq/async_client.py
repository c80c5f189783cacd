"""The client for asyncio. Its methods are described in client.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from medusaq.calls import Calls
from medusaq.client import place
from medusaq.connection import AsyncConnection
from medusaq.fields import BatchFields, JobFields, Prompt, Rows, RunFields
from medusaq.records import Batch, Job
from medusaq.requests import PATIENCE_S

Ending = TypeVar("Ending", Job, Batch)


class AsyncClient:
    """As Client, with methods to await, and iterators for `async for`."""

    def __init__(
        self, url: str | None = None, api_key: str | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        url, headers = place(url, api_key)
        self._calls = Calls(url, patience_s)
        self._connection = AsyncConnection(url, headers)

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def run(
        self, rows: Rows, *, usage: bool = False, **fields: Unpack[RunFields]
    ) -> AsyncGenerator[dict[str, Any]]:
        return self._connection.items(self._calls.run(rows, fields, usage=usage))

    async def submit(self, prompt: Prompt, **fields: Unpack[JobFields]) -> Job:
        return await self._connection.run(self._calls.submit(prompt, fields))

    def stream(self, prompt: Prompt, **fields: Unpack[JobFields]) -> AsyncGenerator[str]:
        return self._connection.items(self._calls.stream(prompt, fields))

    async def submit_batch(self, rows: Rows, **fields: Unpack[BatchFields]) -> Batch:
        return await self._connection.run(self._calls.submit_batch(rows, fields))

    async def wait(self, task: Ending, timeout_s: float | None = None) -> Ending:
        return await self._connection.run(self._calls.wait(task, timeout_s))

    async def cancel(self, task: Ending) -> Ending:
        return await self._connection.run(self._calls.cancel(task))

    async def job(self, job_id: str) -> Job:
        return await self._connection.run(self._calls.job(job_id))

    async def batch(self, batch_id: str) -> Batch:
        return await self._connection.run(self._calls.batch(batch_id))

    def batches(self) -> AsyncGenerator[Batch]:
        return self._connection.items(self._calls.batches())

    def rows(self, batch: Batch, *, usage: bool = False) -> AsyncGenerator[dict[str, Any]]:
        return self._connection.items(self._calls.rows(batch, usage=usage))

    def output(self, batch: Batch) -> AsyncGenerator[dict[str, Any]]:
        return self._connection.items(self._calls.output(batch))

    def errors(self, batch: Batch) -> AsyncGenerator[dict[str, Any]]:
        return self._connection.items(self._calls.errors(batch))

    async def retry(self, batch: Batch, max_tokens: int | None = None) -> Batch:
        return await self._connection.run(self._calls.retry(batch, max_tokens))
