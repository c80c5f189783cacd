"""Merges the results of the parts into RESULTS: one line per input line, in order, in bounded memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cli.base.errors import CliError, writing
from cli.gateway.retrying_client import RetryingClient
from cli.run.folder import RunFolder
from cli.run.result_lines import dump, placed
from cli.run.shards import Sent, order
from cli.run.state import Part
from cli.run.totals import Totals
from common.atomic_write import atomic_file
from medusaq.errors import GatewayError

NOT_FOUND = 404
UNREAD: Mapping[str, dict[str, Any]] = {
    status: {"code": f"batch_{status}", "message": message, "param": None}
    for status, message in (
        ("cancelled", "the batch was cancelled before this line was read"),
        ("expired", "the batch expired before this line was read"),
    )
}


class PartLost(CliError):
    """The gateway no longer has a part or its results, so it must be run again. number: from 1."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the gateway has lost part {number}")
        self.number = number


# Opens RESULTS. What it yields takes each result in order, and returns it as it counts in the totals.
Sink = Callable[[Path], AbstractContextManager[Callable[[Mapping[str, Any]], Mapping[str, Any]]]]


@contextlib.contextmanager
def json_lines(results: Path) -> Iterator[Callable[[Mapping[str, Any]], Mapping[str, Any]]]:
    """The sink of results as they are, one on each line."""
    with atomic_file(results, durable=True) as file:

        def write(result: Mapping[str, Any]) -> Mapping[str, Any]:
            file.write(dump(result))
            return result

        yield write


async def write_results(
    client: RetryingClient,
    folder: RunFolder,
    parts: Sequence[Part],
    batches: Sequence[Mapping[str, Any]],
    sink: Sink = json_lines,
) -> Totals:
    """Write RESULTS atomically and return its totals. batches: the ended batches of the parts.

    Raises PartLost, and CliError.
    """
    tally = Totals()
    with writing(folder.results):
        async with contextlib.aclosing(Answers(client, parts, batches)) as answers:
            with sink(folder.results) as write:
                for index, line in enumerate(order(folder)):
                    if isinstance(line, Sent):
                        line = placed(await answers.next(line.custom_id), index, line.number, line.custom_id)
                    tally.add(write(line))
    return tally


class Answers:
    """The entries of all parts in the order of their lines, each from its output or its error file."""

    def __init__(
        self, client: RetryingClient, parts: Sequence[Part], batches: Sequence[Mapping[str, Any]]
    ) -> None:
        self._client = client
        self._parts = list(zip(parts, batches, strict=True))
        self._number = 0  # of the part that is read, from 1
        self._line = 0  # in it, likewise
        self._streams: list[AsyncGenerator[dict[str, Any]]] = []
        self._heads: list[dict[str, Any] | None] = []

    async def next(self, custom_id: str) -> dict[str, Any]:
        """The entry of the next line, which has this id. Raises PartLost, and CliError if it is missing."""
        try:
            if not self._number or self._line == self._parts[self._number - 1][0].lines:
                await self._next_part()
            self._line += 1
            for index, head in enumerate(self._heads):
                if head is not None and self._is_for(head, custom_id):
                    self._heads[index] = await anext(self._streams[index], None)
                    return head
        except GatewayError as refusal:
            if refusal.status != NOT_FOUND:
                raise
            raise PartLost(self._number) from None
        status = self._parts[self._number - 1][1]["status"]
        if status in UNREAD:  # ended before its file was read to the end
            return {"custom_id": custom_id, "response": None, "error": UNREAD[status] | {"line": self._line}}
        raise CliError(f"the gateway has no answer to {custom_id!r} in part {self._number}")

    async def aclose(self) -> None:
        for stream in self._streams:
            await stream.aclose()

    async def _next_part(self) -> None:
        await self.aclose()
        self._number, self._line = self._number + 1, 0
        batch = self._parts[self._number - 1][1]
        files = [batch["output_file_id"], batch["error_file_id"]]
        self._streams = [_entries(self._client, file_id) for file_id in files if file_id is not None]
        self._heads = [await anext(stream, None) for stream in self._streams]

    def _is_for(self, entry: Mapping[str, Any], custom_id: str) -> bool:
        """Whether an entry is for the line. Unparsable lines have no custom_id, only a line number."""
        if entry["custom_id"] is None:
            return bool(entry["error"]["line"] == self._line)
        return bool(entry["custom_id"] == custom_id)


async def _entries(client: RetryingClient, file_id: str) -> AsyncGenerator[dict[str, Any]]:
    async with contextlib.aclosing(client.lines(f"/v1/files/{file_id}/content")) as lines:
        async for line in lines:
            yield json.loads(line)
