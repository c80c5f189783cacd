"""Runs the parts of an input as batches at the gateway, and writes their results to RESULTS."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from cli.base.errors import CliError
from cli.gateway.retrying_client import WATCH_S, RetryingClient
from cli.run.folder import RunFolder
from cli.run.occupancy import WorkerOccupancy
from cli.run.result_merge import NOT_FOUND, PartLost, Sink, json_lines, write_results
from cli.run.state import Part, RunRecord
from cli.run.totals import Totals
from cli.views.batch_views import progress_of
from cli.views.time_left import Progress, sum_of
from medusaq.errors import GatewayError
from tasks.records.batch import ENDED, BatchStatus
from tasks.records.endpoints import JOBS

MAX_WATCHED = 2  # parts polled at a time: the gateway processes them in order
WORKERS_POLL_S = 5.0
YEAR_S = 365 * 24 * 3600  # deadline of the batches: a run itself has none
OUTPUT_EXPIRY_S = 30 * 24 * 3600  # for runs that are never finished
MAX_LOSSES = 3  # of one part, before the run fails
FILE_LOST = "file_not_found"
CONFLICT = "idempotency_conflict"  # a batch of another file has the key


class BatchRunner:
    """Call refresh(), then run(). say: called with one line per event."""

    def __init__(
        self,
        client: RetryingClient,
        folder: RunFolder,
        record: RunRecord,
        say: Callable[[str], None],
        sink: Sink = json_lines,
    ) -> None:
        self._client = client
        self._folder = folder
        self._record = record
        self._say = say
        self._sink = sink
        self._seen: dict[int, dict[str, Any]] = {}  # number of a part, from 1 -> its batch
        self._losses: Counter[int] = Counter()
        self._occupancy = WorkerOccupancy()
        self._workers_polled_at = float("-inf")

    def progress(self) -> Progress:
        """As last polled; invalid lines, which are not sent, count as done and failed."""
        bad = self._record.bad
        return sum_of(Progress(bad, bad, 0), *map(progress_of, self._seen.values()))

    def occupancy(self) -> float | None:
        """Mean batch occupancy of the workers during run(), from 0 to 1; None if unknown."""
        return self._occupancy.occupancy()

    @property
    def measured_first(self) -> bool:
        """Whether a worker measured first, at the beginning of run(), how it runs fastest."""
        return self._occupancy.measuring

    def all_submitted(self) -> bool:
        """Whether all parts were submitted to the gateway."""
        return all(part.batch_id is not None for part in self._record.parts)

    def files(self) -> list[str]:
        """The ids of the files that the gateway stores for this run."""
        names = ("input_file_id", "output_file_id", "error_file_id")
        return [batch[name] for batch in self._seen.values() for name in names if batch[name] is not None]

    async def refresh(self) -> None:
        """Poll the batches of earlier sessions. Raises MedusaqError."""
        for number, part in enumerate(self._record.parts, 1):
            if part.batch_id is not None:
                await self._refresh(number, part)

    async def run(self) -> Totals:
        """Run until RESULTS is written, and return its totals. After an error, the run can be resumed."""
        self._occupancy.begin(await self._models())
        if not self._occupancy.slots:
            self._say("no model worker is alive: jobs are queued until one is")
        elif self._occupancy.measuring:
            self._say("a worker measures first, once, what is fastest on its machine: up to 15 s")
        while True:
            await self._wait_for_batches()
            self._occupancy.update(await self._models())
            batches = [self._seen[number] for number in range(1, len(self._record.parts) + 1)]
            try:
                return await write_results(
                    self._client, self._folder, self._record.parts, batches, self._sink
                )
            except PartLost as lost:
                self._send_again(lost.number, under_new_keys=True)  # the batch may still be there

    async def _wait_for_batches(self) -> None:
        while unfinished := {n: part for n, part in enumerate(self._record.parts, 1) if not self._ended(n)}:
            unsent = next((n for n, part in unfinished.items() if part.batch_id is None), None)
            if unsent is not None:
                await self._begin(unsent, unfinished[unsent])
            watched = [n for n, part in unfinished.items() if part.batch_id is not None][:MAX_WATCHED]
            for number in reversed(watched):
                is_first = number == watched[0]  # which ends first
                wait_s = WATCH_S if is_first and unsent is None else 0
                await self._refresh(number, unfinished[number], wait_s)
            await self._poll_workers()

    def _ended(self, number: int) -> bool:
        return number in self._seen and self._seen[number]["status"] in ENDED

    async def _begin(self, number: int, part: Part) -> None:
        """Submit a part. Idempotency keys find what an interrupted session already created."""
        key = f"{self._record.run_id}-{number}-{part.attempt}"
        try:
            if part.file_id is None:
                part.file_id = (await self._client.upload(self._folder.part(number), f"{key}-file"))["id"]
                self._save()
            headers = {"Idempotency-Key": f"{key}-batch"}
            body = self._body(number, part)
            batch = await self._client.request("POST", "/v1/batches", headers=headers, json=body)
        except GatewayError as error:
            code = error.error.get("code")
            if code not in (FILE_LOST, CONFLICT):
                raise CliError(f"the gateway refused part {number}: {error}") from None
            self._send_again(number, under_new_keys=code == CONFLICT)
            return
        part.batch_id = batch["id"]
        self._save()
        self._seen[number] = batch

    def _body(self, number: int, part: Part) -> dict[str, Any]:
        return {
            "input_file_id": part.file_id,
            "endpoint": JOBS,
            "completion_window": "24h",
            "deadline": self._record.created_at + YEAR_S,
            "metadata": {"run": self._record.run_id, "part": f"{number} of {len(self._record.parts)}"},
            "output_expires_after": {"anchor": "created_at", "seconds": OUTPUT_EXPIRY_S},
        }

    async def _refresh(self, number: int, part: Part, wait_s: float = 0) -> None:
        try:
            batch = await self._client.request("GET", f"/v1/batches/{part.batch_id}", wait_s=wait_s)
        except GatewayError as error:
            if error.status != NOT_FOUND:
                raise
            self._send_again(number, under_new_keys=False)
            return
        self._seen[number] = batch
        if batch["status"] == BatchStatus.FAILED and batch["error_file_id"] is None:
            part.reset(under_new_keys=True)  # by the next command
            self._save()
            raise CliError(f"the gateway could not run part {number}: {_reason(batch)}")

    def _send_again(self, number: int, *, under_new_keys: bool) -> None:
        """Take back a part of which the gateway has lost something; its old keys find what is still there."""
        self._losses[number] += 1
        if self._losses[number] > MAX_LOSSES:
            raise CliError(f"the gateway has lost part {number} {self._losses[number]} times")
        self._say(f"the gateway does not know part {number} of {len(self._record.parts)}: sending it again")
        self._record.parts[number - 1].reset(under_new_keys=under_new_keys)
        self._seen.pop(number, None)
        self._save()

    def _save(self) -> None:
        self._record.save(self._folder.record)

    async def _models(self) -> list[dict[str, Any]]:
        answer = await self._client.request("GET", "/v1/models")
        models: list[dict[str, Any]] = answer["data"]
        self._workers_polled_at = time.monotonic()
        return models

    async def _poll_workers(self) -> None:
        if time.monotonic() - self._workers_polled_at > WORKERS_POLL_S:
            with contextlib.suppress(GatewayError):  # a statistic, which no run may fail for
                self._occupancy.update(await self._models())


def _reason(batch: Mapping[str, Any]) -> str:
    errors = (batch["errors"] or {}).get("data") or [{"message": "it does not say why"}]
    return str(errors[0]["message"])
