"""The client for programs that wait in their own thread."""

from __future__ import annotations

import os
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from medusaq.calls import Calls
from medusaq.connection import BlockingConnection
from medusaq.fields import BatchFields, JobFields, Prompt, Rows, RunFields
from medusaq.records import Batch, Job
from medusaq.requests import PATIENCE_S, authorization, checked_url

DEFAULT_URL = "http://127.0.0.1:7860"

Ending = TypeVar("Ending", Job, Batch)


def place(url: str | None, api_key: str | None) -> tuple[str, dict[str, str]]:
    """The URL, and the header with the key; by default those of MEDUSAQ_URL and MEDUSAQ_API_KEY."""
    url = url or os.environ.get("MEDUSAQ_URL") or DEFAULT_URL
    return checked_url(url), authorization(api_key or os.environ.get("MEDUSAQ_API_KEY"))


class Client:
    """A gateway. Requests are repeated until it answers, and given up after patience_s without an answer.

    All methods raise GatewayError if the gateway refuses, GatewayUnreachable if none answers, and
    MedusaqError for input that cannot be sent.
    """

    def __init__(
        self, url: str | None = None, api_key: str | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        url, headers = place(url, api_key)
        self._calls = Calls(url, patience_s)
        self._connection = BlockingConnection(url, headers)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self, rows: Rows, *, usage: bool = False, **fields: Unpack[RunFields]
    ) -> Generator[dict[str, Any]]:
        """Send a prompt for each row, and yield the rows with their answers in the order of the input.

        rows: dictionaries, texts (each a prompt), or the path of a table. template: the prompt, over the
        columns; by default the column `prompt`. schema: of the answers, whose properties become columns.
        usage: adds the token counts. A row that failed has an `error`. Nothing is sent before the first row
        is asked for; whoever stops earlier cancels the rest. Raises BatchFailed.
        """
        return self._connection.items(self._calls.run(rows, fields, usage=usage))

    def submit(self, prompt: Prompt, **fields: Unpack[JobFields]) -> Job:
        """Queue one prompt, or a conversation."""
        return self._connection.run(self._calls.submit(prompt, fields))

    def stream(self, prompt: Prompt, **fields: Unpack[JobFields]) -> Generator[str]:
        """The pieces of an answer as they are generated. Raises JobFailed.

        Whoever stops before the end cancels the job.
        """
        return self._connection.items(self._calls.stream(prompt, fields))

    def submit_batch(self, rows: Rows, **fields: Unpack[BatchFields]) -> Batch:
        """Queue rows as run() takes them, or, without a template, the path of a file of batch lines."""
        return self._connection.run(self._calls.submit_batch(rows, fields))

    def wait(self, task: Ending, timeout_s: float | None = None) -> Ending:
        """The job or batch at its end. Raises JobFailed, BatchFailed and WaitTimeout."""
        return self._connection.run(self._calls.wait(task, timeout_s))

    def cancel(self, task: Ending) -> Ending:
        """Cancel a job or a batch, which may take a second; what has ended stays as it is."""
        return self._connection.run(self._calls.cancel(task))

    def job(self, job_id: str) -> Job:
        """The job as it is now."""
        return self._connection.run(self._calls.job(job_id))

    def batch(self, batch_id: str) -> Batch:
        """The batch as it is now."""
        return self._connection.run(self._calls.batch(batch_id))

    def batches(self) -> Generator[Batch]:
        """All batches, newest first."""
        return self._connection.items(self._calls.batches())

    def rows(self, batch: Batch, *, usage: bool = False) -> Generator[dict[str, Any]]:
        """The rows of a batch that was made of a table, with their answers, as far as they have ended."""
        return self._connection.items(self._calls.rows(batch, usage=usage))

    def output(self, batch: Batch) -> Generator[dict[str, Any]]:
        """The answers so far, as objects of OpenAI's output files."""
        return self._connection.items(self._calls.output(batch))

    def errors(self, batch: Batch) -> Generator[dict[str, Any]]:
        """The failures so far, likewise."""
        return self._connection.items(self._calls.errors(batch))

    def retry(self, batch: Batch, max_tokens: int | None = None) -> Batch:
        """A new batch of what failed. max_tokens: in place of the lines' own."""
        return self._connection.run(self._calls.retry(batch, max_tokens))
