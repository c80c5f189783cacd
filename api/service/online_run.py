"""The jobs behind one online answer: begun together, waited for together, and cancelled with it."""

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
from api.service.online_request import Asked, renamed
from api.service.submission import submit_all
from tasks.records.job import Job
from tasks.schema.openai_requests import as_written

KEEP_S = 3600  # records of online requests: the answer is with the client, this is for looking back


class Running:
    """Made by start(). Whoever has one calls cancel_rest() when the answer is over, however it ended."""

    def __init__(self, gateway: Gateway, asked: Asked, jobs: list[Job], give_up: float, key: OpenKey) -> None:
        self.asked = asked
        self.jobs = jobs
        self._gateway = gateway
        self._give_up = give_up  # on the monotonic clock
        self._key = key
        self._ended: dict[str, Job] = {}
        gateway.awaited.update(job.id for job in jobs)

    @classmethod
    async def start(cls, gateway: Gateway, asked: Asked, caller: Caller) -> Running:
        """Submit the jobs, all or none. Raises ApiError and StoreUnavailable."""
        give_up = time.monotonic() + gateway.settings.online_timeout_s
        jobs = await run_in_threadpool(_submit, gateway, asked, caller.owner)
        return cls(gateway, asked, jobs, give_up, caller.key)

    @property
    def ended(self) -> list[Job]:
        """The jobs as they ended; all of them have."""
        return [self._ended[job.id] for job in self.jobs]

    def cancel_rest(self) -> None:
        self._gateway.awaited.difference_update(job.id for job in self.jobs)
        self._gateway.cancel_soon([job.id for job in self.jobs if job.id not in self._ended])

    async def wait(self) -> None:
        """Until all have succeeded; raises ApiError as soon as one has not."""
        waiting = [asyncio.create_task(self._gateway.waiter.wait(job, self._left)) for job in self.jobs]
        try:
            for one in asyncio.as_completed(waiting):
                self._note(await one)
        finally:
            await _end(waiting)

    async def news(self) -> AsyncGenerator[tuple[int, Text | Job], None]:
        """Text of the jobs as it comes, and each job once it has succeeded, with its place.

        Raises ApiError as soon as one does not succeed.
        """
        said: asyncio.Queue[tuple[int, Text | Job | Exception]] = asyncio.Queue()
        followers = [asyncio.create_task(self._follow(place, said)) for place in range(len(self.jobs))]
        try:
            while len(self._ended) < len(self.jobs):
                try:
                    place, news = await asyncio.wait_for(said.get(), self._left)
                except TimeoutError:
                    raise self._too_late() from None
                if isinstance(news, Exception):
                    raise news
                if isinstance(news, Job):
                    self._note(news)
                yield place, news
        finally:
            await _end(followers)

    async def _follow(self, place: int, said: asyncio.Queue[tuple[int, Text | Job | Exception]]) -> None:
        try:
            async with aclosing(follow(self._gateway, self.jobs[place], self._key)) as told:
                async for news in told:
                    if isinstance(news, Text) or news.terminal:
                        said.put_nowait((place, news))
        except Exception as error:
            said.put_nowait((place, error))

    @property
    def _left(self) -> float:
        """Seconds."""
        return max(0.0, self._give_up - time.monotonic())

    def _note(self, job: Job) -> None:
        if not job.terminal:
            raise self._too_late()
        self._ended[job.id] = job
        error = failure(job)
        if isinstance(error, BadRequest):
            raise _worded(error, self.asked)
        if error is not None:
            raise error

    def _too_late(self) -> NotInTime:
        return NotInTime(f"no answer within {self._gateway.settings.online_timeout_s:g} s; it is cancelled")


def _submit(gateway: Gateway, asked: Asked, owner: str) -> list[Job]:
    latest = time.time() + gateway.settings.online_timeout_s  # for the case that this gateway is killed
    due = latest if asked.job.deadline is None else min(asked.job.deadline, latest)
    body = asked.job.model_copy(update={"deadline": due})
    try:
        return submit_all(gateway, body, asked.variants, owner, watched=asked.stream, keep_s=KEEP_S)
    except BadRequest as error:
        raise _worded(error, asked) from None


def _worded(error: BadRequest, asked: Asked) -> BadRequest:
    """With the request's own name for the field."""
    return error if error.param is None else renamed(error, as_written(error.param, asked.body))


async def _end(tasks: list[asyncio.Task[None]] | list[asyncio.Task[Job]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
