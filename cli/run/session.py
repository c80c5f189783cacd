"""One session of a run: provides a gateway, runs the batches, and handles interruption."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from cli.base.errors import CliError, ModelNotLoadable
from cli.gateway.retrying_client import RetryingClient
from cli.processes.signals import Interrupts
from cli.prompts.prompt_reader import ReadOptions
from cli.run.batch_runner import BatchRunner
from cli.run.folder import RunFolder
from cli.run.result_merge import Sink, json_lines
from cli.run.state import RunRecord
from cli.run.summary import SessionSummary
from cli.run.totals import Totals
from cli.stack.local_stack import Stack, StackOptions
from cli.views.progress import Display, updated
from cli.views.time_left import Progress
from medusaq.errors import MedusaqError
from medusaq.requests import PATIENCE_S
from tables.answers.schema import AnswerSchema

RUN_DRAIN_S = 5.0  # for what runs on the own stack at an interruption; the rest is run again when it goes on
DRAIN_POLL_S = 0.1


@dataclass(frozen=True)
class RunOptions:
    """url: None starts a local stack for the run, with the GGUF at model_path.

    schema, usage, safe_csv: of the columns of a table of results.
    """

    source: str
    results: Path
    read: ReadOptions = field(default_factory=ReadOptions)
    url: str | None = None
    model_path: str | None = None
    patience_s: float = PATIENCE_S
    progress: bool = True
    fresh: bool = False
    keep: bool = False
    schema: AnswerSchema | None = None
    usage: bool = False
    safe_csv: bool = False


class Session:
    """After run(), whole has the totals of the results, and files the ids of its files at the gateway."""

    def __init__(
        self,
        options: RunOptions,
        folder: RunFolder,
        record: RunRecord,
        console: Console,
        say: Callable[[str], None],
        sink: Sink = json_lines,
    ) -> None:
        self.whole = Totals()
        self.files: list[str] = []
        self._options = options
        self._folder = folder
        self._record = record
        self._console = console
        self._say = say
        self._sink = sink
        self._before = self._now = Progress(record.bad, record.bad, 0)
        self._resumed = False
        self._counts_known = not record.begun  # whether the counts include earlier sessions
        self._all_submitted = False
        self._seconds = 0.0
        self._starting_s: float | None = None
        self._occupancy: float | None = None
        self.measured_first = False  # a worker measured what is fastest, while requests waited
        self._interrupts = Interrupts()
        self._abort: Callable[[], object] | None = None
        self._drain: Callable[[], object] | None = None
        self._aborted = False
        self._stack: Stack | None = None

    def run(self) -> None:
        """Run until RESULTS is written. Raises MedusaqError, after which the run can be resumed."""
        try:
            with self._interrupts, self._gateway() as url:
                started = time.monotonic()
                try:
                    asyncio.run(self._send(url))
                finally:
                    self._seconds = time.monotonic() - started
        except (MedusaqError, asyncio.CancelledError) as error:
            cause = self._cause(error)
            if not isinstance(cause, ModelNotLoadable):  # which the same command would meet again
                self._say(self._resume_hint())
            raise cause from None

    def summary(self) -> SessionSummary:
        requests = self._now.done - (self._before.done if self._resumed else 0)
        tokens = self._now.tokens - self._before.tokens
        counts = max(0, requests), max(0, tokens)
        return SessionSummary(*counts, self._seconds, self._occupancy, self._starting_s)

    def _resume_hint(self) -> str:
        done = f"{self._now.done} of {self._record.total} requests are done; " if self._counts_known else ""
        if self._options.url is not None and self._interrupts.requested() and self._all_submitted:
            return f"{done}the gateway goes on: repeat the same command to fetch the results"
        return f"{done}repeat the same command to go on"

    def _cause(self, error: MedusaqError | asyncio.CancelledError) -> MedusaqError:
        """The root cause of the abort."""
        if self._interrupts.requested():
            return self._interrupts.error("interrupted")
        if self._stack is not None and (failure := self._stack.failed()) is not None:
            return failure
        return error if isinstance(error, MedusaqError) else CliError("the run was cancelled")

    @contextlib.contextmanager
    def _gateway(self) -> Iterator[str]:
        """The URL of the given gateway, or of a local stack for this run."""
        self._interrupts.on_first(self._interrupted)
        self._interrupts.on_further(self._break_off)
        if self._options.url is not None:
            yield self._options.url
            return
        began = time.monotonic()
        model = self._options.model_path
        where = StackOptions(self._folder.stack, 0, 0, model, RUN_DRAIN_S, private=True)
        self._stack = Stack(where, self._say, on_failure=lambda _: self._break_off())
        self._interrupts.on_further(self._stack.hurry)
        with self._stack as stack:
            self._say(f"local stack for this run: gateway {stack.url}, Flower {stack.flower_url}")
            if not stack.wait_ready(self._interrupts.requested):
                raise CliError("not started")
            self._starting_s = time.monotonic() - began
            yield stack.url

    def _interrupted(self) -> None:
        """Called from a signal handler. A gateway of others goes on with what it has."""
        if self._drain is None:
            self._break_off()
        else:
            self._drain()

    def _break_off(self) -> None:
        """Called from a signal handler or from the supervisor's thread."""
        self._aborted = True
        if self._abort is not None:
            self._abort()

    async def _send(self, url: str) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def abort() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended by itself
                loop.call_soon_threadsafe(task.cancel)

        self._abort = abort
        if self._aborted:
            abort()
        client = RetryingClient(url, self._options.patience_s)
        run = BatchRunner(client, self._folder, self._record, self._say, self._sink)
        asked = asyncio.Event()
        drainer = asyncio.create_task(self._drain_stack(asked, run, abort))
        if self._stack is not None:
            self._drain = lambda: loop.call_soon_threadsafe(asked.set)
        try:
            await self._resume(run)
            await self._watch(run, client)
        finally:
            self._drain = None
            drainer.cancel()
            await client.close()
            self._all_submitted = run.all_submitted()
        self._occupancy, self.files = run.occupancy(), run.files()
        self.measured_first = run.measured_first

    async def _drain_stack(self, asked: asyncio.Event, run: BatchRunner, abort: Callable[[], object]) -> None:
        """Once asked, let what runs on the own stack end, and break off unless that was all."""
        await asked.wait()
        assert self._stack is not None
        self._say(
            f"interrupted: what runs has {RUN_DRAIN_S:.0f} s to end, and these answers are kept; "
            "Ctrl-C again ends it at once"
        )
        self._stack.drain()
        until = time.monotonic() + RUN_DRAIN_S
        while not self._stack.drained and time.monotonic() < until:
            await asyncio.sleep(DRAIN_POLL_S)
        with contextlib.suppress(MedusaqError):
            await run.refresh()
        if run.progress().done < self._record.total:
            abort()

    async def _resume(self, run: BatchRunner) -> None:
        """Load the progress of earlier sessions."""
        await run.refresh()
        self._resumed = self._record.begun
        self._before = self._now = run.progress()
        self._counts_known = True
        if self._resumed:
            self._say(f"going on: {self._now.done} of {self._record.total} requests are done already")

    async def _watch(self, run: BatchRunner, client: RetryingClient) -> None:
        total, before = self._record.total, self._before
        with Display(self._console, total, before, enabled=self._options.progress) as display:

            def update() -> None:
                self._now = run.progress()
                display.update(self._now, client.last_error)

            async with updated(update):
                self.whole = await run.run()
