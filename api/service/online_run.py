"""Runs the jobs of one online request: submits them, waits for them, and cancels them with the request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from api.http.errors import BadRequest, NotInTime
from api.requests.caller import Caller
from api.requests.open_requests import OpenKey
from api.requests.threads import run_in_threadpool
from api.service.dependencies import Gateway
from api.service.job_errors import failure
from api.service.job_stream import Text, follow
from api.service.online_request import OnlineRequest, renamed
from api.service.submission import submit_all
from tasks.records.job import INCOMPLETE, Job
from tasks.schema.openai_requests import as_written

KEEP_S = 3600  # records are only kept for inspection: the client has the answer


class OnlineRun:
    """Created by start(). The caller must call cancel_rest() when the response ends, also after an error."""

    def __init__(
        self, gateway: Gateway, request: OnlineRequest, jobs: list[Job], give_up_at: float, key: OpenKey
    ) -> None:
        self.request = request
        self.jobs = jobs
        self._gateway = gateway
        self._give_up_at = give_up_at  # on the monotonic clock
        self._key = key
        self._ended: dict[str, Job] = {}
        gateway.awaited.update(job.id for job in jobs)

    @classmethod
    async def start(cls, gateway: Gateway, request: OnlineRequest, caller: Caller) -> OnlineRun:
        """Submit all jobs or none. Raises ApiError and StoreUnavailable."""
        give_up_at = time.monotonic() + gateway.settings.online_timeout_s
        jobs = await run_in_threadpool(_submit, gateway, request, caller.owner)
        return cls(gateway, request, jobs, give_up_at, caller.key)

    @property
    def ended(self) -> list[Job]:
        """The final records of all jobs, once all have ended."""
        return [self._ended[job.id] for job in self.jobs]

    def cancel_rest(self) -> None:
        self._gateway.awaited.difference_update(job.id for job in self.jobs)
        self._gateway.cancel_soon([job.id for job in self.jobs if job.id not in self._ended])

    async def wait(self) -> None:
        """Wait until all jobs have an answer. Raises ApiError as soon as one fails without."""
        waiting = [
            asyncio.create_task(self._gateway.job_events.wait(job, self._remaining_s)) for job in self.jobs
        ]
        try:
            for waited in asyncio.as_completed(waiting):
                self._record_end(await waited)
        finally:
            await _cancel_tasks(waiting)

    async def updates(self) -> AsyncGenerator[tuple[int, Text | Job], None]:
        """Yield (index of the job, new text or the job that has ended with an answer).

        Raises ApiError as soon as a job fails without one.
        """
        queue: asyncio.Queue[tuple[int, Text | Job | Exception]] = asyncio.Queue()
        followers = [asyncio.create_task(self._follow(index, queue)) for index in range(len(self.jobs))]
        try:
            while len(self._ended) < len(self.jobs):
                try:
                    index, update = await asyncio.wait_for(queue.get(), self._remaining_s)
                except TimeoutError:
                    raise self._timed_out() from None
                if isinstance(update, Exception):
                    raise update
                if isinstance(update, Job):
                    self._record_end(update)
                yield index, update
        finally:
            await _cancel_tasks(followers)

    async def _follow(self, index: int, queue: asyncio.Queue[tuple[int, Text | Job | Exception]]) -> None:
        try:
            async with aclosing(follow(self._gateway, self.jobs[index], self._key)) as updates:
                async for update in updates:
                    if isinstance(update, Text) or update.terminal:
                        queue.put_nowait((index, update))
        except Exception as error:
            queue.put_nowait((index, error))

    @property
    def _remaining_s(self) -> float:
        """Time until online_timeout_s has passed."""
        return max(0.0, self._give_up_at - time.monotonic())

    def _record_end(self, job: Job) -> None:
        if not job.terminal:
            raise self._timed_out()
        self._ended[job.id] = job
        error = None if _is_cut_off(job) else failure(job)
        if isinstance(error, BadRequest):
            raise _with_request_field(error, self.request)
        if error is not None:
            raise error

    def _timed_out(self) -> NotInTime:
        return NotInTime(
            f"no answer within {self._gateway.settings.online_timeout_s:g} s; the request was cancelled"
        )


def _submit(gateway: Gateway, request: OnlineRequest, owner: str) -> list[Job]:
    # The jobs have a deadline in case this gateway is killed and cannot cancel them.
    latest = time.time() + gateway.settings.online_timeout_s
    due = latest if request.job.deadline is None else min(request.job.deadline, latest)
    body = request.job.model_copy(update={"deadline": due})
    keep_s = None if request.kept else KEEP_S
    try:
        return submit_all(gateway, body, request.variants, owner, streaming=request.stream, keep_s=keep_s)
    except BadRequest as error:
        raise _with_request_field(error, request) from None


def _is_cut_off(job: Job) -> bool:
    """Whether it failed only because its JSON was cut off: clients of OpenAI's API then expect the text, and
    the finish_reason "length"."""
    return job.error is not None and job.error["code"] == INCOMPLETE and job.result is not None


def _with_request_field(error: BadRequest, request: OnlineRequest) -> BadRequest:
    """The same error with the request's name of the field."""
    return error if error.param is None else renamed(error, as_written(error.param, request.body))


async def _cancel_tasks(tasks: list[asyncio.Task[None]] | list[asyncio.Task[Job]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
