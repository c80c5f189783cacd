"""One session of a bulk run: a gateway to talk to, the sending itself, and what may break it off."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cli.bulk import BulkRun
from cli.client import PATIENCE_S, PatientClient
from cli.errors import CliError
from cli.interrupts import Interrupts
from cli.journal import Journal
from cli.progress import Display
from cli.prompts import PromptLine, ReadOptions
from cli.stack import Stack, StackOptions
from cli.tally import Tally

MAX_CONNECTIONS = 1024  # above it, file descriptors run out on common systems
DISPLAY_S = 0.25
RUN_DRAIN_S = 2.0  # a broken-off run does not wait for its jobs: they are taken up again


@dataclass(frozen=True)
class RunOptions:
    """url None is a local stack for the run, with the GGUF at model_path. concurrency 0 is automatic."""

    source: str
    results: Path
    read: ReadOptions = field(default_factory=ReadOptions)
    url: str | None = None
    model_path: str | None = None
    concurrency: int = 0
    patience_s: float = PATIENCE_S
    progress: bool = True
    fresh: bool = False
    keep: bool = False


class Session:
    """After run(), tally counts what it added to the journal in `seconds`; occupancy is None if unknown."""

    def __init__(
        self,
        options: RunOptions,
        journal: Journal,
        total: int,
        state_dir: Path,
        say: Callable[[str], None],
        display: Display,
    ) -> None:
        self.tally = Tally()
        self.seconds = 0.0
        self.occupancy: float | None = None
        self._options = options
        self._journal = journal
        self._total = total
        self._state_dir = state_dir
        self._say = say
        self._display = display
        self._interrupts = Interrupts()
        self._abort: Callable[[], object] | None = None
        self._aborted = False
        self._stack: Stack | None = None

    def run(self, lines: Generator[PromptLine]) -> None:
        """Until every line has its end. Raises CliError; repeating goes on from there."""
        try:
            with self._interrupts, self._gateway() as url:
                started = time.monotonic()
                try:
                    asyncio.run(self._send(url, lines))
                finally:
                    self.seconds = time.monotonic() - started
        except (CliError, asyncio.CancelledError) as error:
            self._say(
                f"{self._journal.done} of {self._total} requests are done; repeat the same command to go on"
            )
            raise self._cause(error) from None

    def _cause(self, error: CliError | asyncio.CancelledError) -> CliError:
        """What really broke the session off: the rest follows from it."""
        if self._interrupts.requested():
            return self._interrupts.error("interrupted")
        if self._stack is not None and (failure := self._stack.failed()) is not None:
            return failure
        return error if isinstance(error, CliError) else CliError("the run was cancelled")

    @contextlib.contextmanager
    def _gateway(self) -> Iterator[str]:
        """The address to use: the one given, or that of a stack of the run's own."""
        self._interrupts.on_first(self._break_off)
        if self._options.url is not None:
            yield self._options.url
            return
        where = StackOptions(self._state_dir, 0, 0, self._options.model_path, RUN_DRAIN_S)
        self._stack = Stack(where, self._say, on_failure=lambda _: self._break_off())
        self._interrupts.on_further(self._stack.hurry)
        with self._stack as stack:
            self._say(f"local stack for this run: gateway {stack.url}, Flower {stack.flower_url}")
            if not stack.wait_ready(self._interrupts.requested):
                raise CliError("not started")
            yield stack.url

    def _break_off(self) -> None:
        """Called from a signal handler or from the supervisor's thread."""
        self._aborted = True
        if self._abort is not None:
            self._abort()

    async def _send(self, url: str, lines: Generator[PromptLine]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def abort() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended by itself
                loop.call_soon_threadsafe(task.cancel)

        self._abort = abort
        if self._aborted:
            abort()
        client = PatientClient(url, MAX_CONNECTIONS, self._options.patience_s)
        bulk = BulkRun(client, self._journal, self.tally, self._say, self._options.concurrency)
        with self._display:
            show = asyncio.create_task(self._show(client))
            try:
                await bulk.run(lines)
            finally:
                show.cancel()
                lines.close()
                await client.close()
                self._update(client)
        self.occupancy = bulk.occupancy()

    async def _show(self, client: PatientClient) -> None:
        while True:
            self._update(client)
            await asyncio.sleep(DISPLAY_S)

    def _update(self, client: PatientClient) -> None:
        journal = self._journal
        self._display.update(journal.done, journal.failed, self.tally.generated_tokens, client.trouble)
