"""A gateway for the duration of one command: a running one, or a temporary local stack."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cli.base.errors import CliError, Interrupted
from cli.processes.signals import Interrupts
from cli.stack.local_stack import Stack, StackOptions

DRAIN_S = 2.0  # an interrupted command does not wait for its jobs


@contextlib.contextmanager
def gateway(url: str | None, model: str | None, say: Callable[[str], None]) -> Iterator[str]:
    """Yield the URL. A signal raises Interrupted in the block. model: a GGUF for the local stack."""
    with Interrupts() as interrupts, contextlib.ExitStack() as exits:
        where, stack = url, None
        if where is None:
            folder = exits.enter_context(
                tempfile.TemporaryDirectory(prefix="medusaq-", ignore_cleanup_errors=True)
            )
            stack = Stack(StackOptions(Path(folder), 0, None, model, DRAIN_S, private=True), say)
            interrupts.on_further(stack.hurry)
            exits.enter_context(stack)
            say(f"local stack for this command: gateway {stack.url}")
            if not stack.wait_ready(interrupts.requested):
                raise interrupts.error("interrupted")
            where = stack.url

        def stop() -> None:
            raise interrupts.error("interrupted")

        interrupts.on_first(stop)
        if interrupts.requested():
            stop()
        try:
            yield where
        except Interrupted:
            raise
        except CliError as error:
            raise (stack and stack.failed()) or error from None
