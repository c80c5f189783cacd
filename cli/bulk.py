"""A bulk run: sends every line that has no result yet, and journals each end as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from cli import results
from cli.client import PatientClient, Refused
from cli.errors import CliError
from cli.fleet import Fleet
from cli.journal import Journal
from cli.prompts import PromptLine
from cli.tally import Tally
from tasks.job import TERMINAL

WAIT_S = 30  # of one long poll: well below what proxies cut off
NO_WAIT_POLL_S = 1.0  # between polls where the gateway grants no waiting
SYNC_S = 0.2  # results older than this are on the disk
FLEET_POLL_S = 5.0
MIN_CONCURRENCY = 8
UNAUTHORISED = frozenset({401, 403})  # no line would fare better
MAX_RESUBMITS = 3  # of a line whose record vanished from the server


class BulkRun:
    """Sends what the journal lacks; concurrency 0 is twice the slots of the live workers."""

    def __init__(
        self,
        client: PatientClient,
        journal: Journal,
        tally: Tally,
        say: Callable[[str], None],
        concurrency: int = 0,
    ) -> None:
        self._client = client
        self._journal = journal
        self._tally = tally
        self._say = say
        self._concurrency = concurrency
        self._fleet = Fleet()
        self._wait_s = WAIT_S

    def occupancy(self) -> float | None:
        """Of the batches of the live workers during run(), from 0 to 1; None when none ran."""
        return self._fleet.occupancy()

    async def run(self, lines: Iterator[PromptLine]) -> None:
        """Until every line has an end. Raises what stops a run; the journal then holds what was done."""
        self._fleet.begin(await self._models())
        if not self._fleet.slots:
            self._say("no model worker is alive: jobs are queued until one is")
        count = self._concurrency or max(2 * self._fleet.slots, MIN_CONCURRENCY)
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(self._sync()), group.create_task(self._watch())]
                await asyncio.gather(*[group.create_task(self._drain(lines)) for _ in range(count)])
                for helper in helpers:
                    helper.cancel()
            self._fleet.update(await self._models())
        except* CliError as errors:
            raise _first(errors) from None
        finally:
            self._journal.sync()

    async def _drain(self, lines: Iterator[PromptLine]) -> None:
        for line in lines:  # shared by all: each takes the next one when it is free
            if self._journal.has(line.index):
                continue
            result = results.invalid(line) if line.problems else await self._one(line)
            failed = results.error_code(result) is not None
            self._journal.append(line.index, result, failed=failed)
            self._tally.add(result)

    async def _one(self, line: PromptLine) -> dict[str, Any]:
        for attempt in range(MAX_RESUBMITS):
            key = self._key(line, attempt)
            try:
                return results.finished(line, await self._job(line, key), self._fleet.only_model)
            except Refused as refusal:
                if refusal.status in UNAUTHORISED:
                    raise
                if refusal.error.get("code") != "job_not_found" or attempt == MAX_RESUBMITS - 1:
                    return results.refused(line, refusal.status, key, refusal.error)
        raise AssertionError("the last attempt returns")

    async def _job(self, line: PromptLine, key: str) -> dict[str, Any]:
        """Submit (the same key finds the same job again) and wait for its end."""
        metadata = {"run": self._journal.run_id, "custom_id": line.custom_id, **line.job.get("metadata", {})}
        body = {**line.job, "metadata": metadata}
        record = await self._request("POST", "/v1/jobs", headers={"Idempotency-Key": key}, json=body)
        while record["status"] not in TERMINAL:
            if not self._wait_s:
                await asyncio.sleep(NO_WAIT_POLL_S)
            record = await self._request("GET", f"/v1/jobs/{record['id']}")
        return record

    async def _request(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        while True:
            wait_s = self._wait_s
            try:
                answer: dict[str, Any] = await self._client.request(method, path, wait_s=wait_s, **request)
                return answer
            except Refused as refusal:
                if refusal.error.get("param") != "Prefer" or not wait_s:
                    raise
                self._wait_s = min(self._wait_s, wait_s // 2)  # this gateway grants less

    def _key(self, line: PromptLine, attempt: int) -> str:
        body = hashlib.sha256(json.dumps(line.job, sort_keys=True).encode()).hexdigest()[:16]
        again = f"-{attempt + 1}" if attempt else ""
        return f"{self._journal.run_id}-{line.index}-{body}{again}"

    async def _models(self) -> list[dict[str, Any]]:
        answer = await self._client.request("GET", "/v1/models")
        models: list[dict[str, Any]] = answer["data"]
        return models

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            self._journal.sync()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(FLEET_POLL_S)
            with contextlib.suppress(Exception):  # a statistic, which no run may fail for
                self._fleet.update(await self._models())


def _first(errors: BaseExceptionGroup[CliError]) -> CliError:
    """One error of a group, however deep: all its siblings tell of the same cause."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, CliError)
    return error
