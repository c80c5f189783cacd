"""What the clients do, as flows."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

import httpx

from medusaq.errors import BatchFailed, GatewayError, JobFailed, MedusaqError, WaitTimeout
from medusaq.events import EventReader
from medusaq.fields import Frame, Prompt, Rows, Schedule, Table
from medusaq.records import Batch, Job, Sent
from medusaq.requests import EVENTS_TIMEOUT_S, Requests, answer
from medusaq.steps import Flow, Give, Send

JOBS, BATCHES = "/v1/jobs", "/v1/batches"
LONG_POLL_S = 30.0
ROWS_NAME = "rows.jsonl"  # its ending says what the rows are
PROMPT = "prompt"  # the column of rows that are text
WHOLE_PROMPT = "{{ prompt }}"
MAX_PAGE = 100
LOST = frozenset({"job_not_found", "batch_not_found"})
FILE_LOST = "file_not_found"

Ending = TypeVar("Ending", Job, Batch)


class Calls(Requests):
    """Of both clients."""

    def submit(self, prompt: Prompt, fields: Mapping[str, Any]) -> Flow[Job]:
        what = {"prompt": prompt} if isinstance(prompt, str) else {"messages": list(prompt)}
        return (yield from self._created(JOBS, what | dict(fields), Job))

    def job(self, job_id: str) -> Flow[Job]:
        return Job.of((yield from self.json("GET", _path(JOBS, job_id))))

    def batch(self, batch_id: str) -> Flow[Batch]:
        return Batch.of((yield from self.json("GET", _path(BATCHES, batch_id))))

    def wait(self, task: Ending, timeout_s: float | None) -> Flow[Ending]:
        """The task at its end. Raises JobFailed, BatchFailed and WaitTimeout."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not task.ended:
            left = LONG_POLL_S if until is None else until - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"{task.id} has not ended within {timeout_s:g} s: it is {task.status}")
            task = yield from self._now(task, min(max(1.0, left), LONG_POLL_S))
        if isinstance(task, Job) and task.status != "succeeded":
            raise JobFailed(task)
        if isinstance(task, Batch) and task.status == "failed":
            raise BatchFailed(task)
        return task

    def cancel(self, task: Ending) -> Flow[Ending]:
        return type(task).of((yield from self.json("POST", f"{task.path}/cancel")))

    def stream(self, prompt: Prompt, fields: Mapping[str, Any]) -> Flow[None]:
        """Give the pieces of an answer's text. Raises JobFailed at the end of one that failed."""
        pieces = _Pieces((yield from self.submit(prompt, fields)))

        def send() -> Send:
            pieces.begin()
            return Send("GET", f"{pieces.job.path}/events", EVENTS_TIMEOUT_S)

        try:
            while True:
                try:
                    yield from self.blocks(send, lambda _: 0, pieces.read)
                    break
                except GatewayError as error:
                    if pieces.given:  # another job may say something else
                        raise
                    pieces.job = yield from self._again(pieces.job, error)
            yield from self.wait(pieces.job, None)
        except Exception:
            raise
        except BaseException:  # Abandoned, Ctrl-C, a cancelled task: nobody reads it any more
            yield from self._suppressed("POST", f"{pieces.job.path}/cancel")
            raise

    def submit_batch(self, rows: Rows, fields: Mapping[str, Any]) -> Flow[Batch]:
        return self._batch(_Source(rows), fields)

    def run(self, rows: Rows, fields: Mapping[str, Any], *, usage: bool) -> Flow[None]:
        """Give the rows with their answers, and leave nothing at the gateway."""
        source = _Source(rows)
        with source.opened():  # until nobody needs them any more
            batch = yield from self._batch(source, {"template": WHOLE_PROMPT, **fields})
            try:
                batch = yield from self.wait(batch, None)
                source.close()
                yield from self.rows(batch, usage=usage)
            except BatchFailed as failure:
                batch = failure.batch
                raise
            finally:
                yield from self._dropped(batch)

    def rows(self, batch: Batch, *, usage: bool) -> Flow[None]:
        """Give the rows of a table with their answers, as far as they have ended."""
        return self._objects(f"{batch.path}/output?format=jsonl&usage={str(usage).lower()}")

    def output(self, batch: Batch) -> Flow[None]:
        return self._objects(f"{batch.path}/output")

    def errors(self, batch: Batch) -> Flow[None]:
        return self._objects(f"{batch.path}/errors")

    def batches(self) -> Flow[None]:
        """Give all batches, newest first."""
        after: dict[str, str] = {}
        while True:
            page = yield from self.json("GET", BATCHES, params={"limit": MAX_PAGE, **after})
            yield Give([Batch.of(record) for record in page["data"]])
            if not page["has_more"]:
                return
            after = {"after": page["last_id"]}

    def retry(self, batch: Batch, max_tokens: int | None) -> Flow[Batch]:
        return (yield from self._created(f"{batch.path}/retry", {"max_tokens": max_tokens}, Batch))

    def _batch(self, source: _Source, fields: Mapping[str, Any]) -> Flow[Batch]:
        schedule, table, body = _sorted(fields)
        if not source.is_file:
            table.setdefault("template", WHOLE_PROMPT)
        if table:
            table["body"] = body
            schedule.setdefault("endpoint", JOBS)
        elif body.keys() == {"model"}:
            schedule |= body
        elif body:
            raise MedusaqError(f"{', '.join(body)}: a file of batch lines says this in each line")
        what = {"endpoint": "/v1/chat/completions", **schedule, **table}
        return (yield from self._created(BATCHES, what, Batch, source))

    def _created(
        self, path: str, body: Mapping[str, Any], kind: type[Ending], source: _Source | None = None
    ) -> Flow[Ending]:
        """What a POST creates, once, even if the request has to be repeated. source: uploaded before."""
        sent = Sent(path, dict(body), uuid.uuid4().hex, source)
        if source is not None:
            yield from self._upload(sent, source)
        return (yield from self._post(sent, kind))

    def _post(self, sent: Sent, kind: type[Ending]) -> Flow[Ending]:
        while True:
            try:
                headers = {"Idempotency-Key": sent.key}
                return kind.of(
                    (yield from self.json("POST", sent.path, json=sent.body, headers=headers)), sent
                )
            except GatewayError as error:
                if error.error.get("code") != FILE_LOST or sent.source is None or not sent.lost():
                    raise
                yield from self._upload(sent, sent.source)

    def _upload(self, sent: Sent, source: _Source) -> Flow[None]:
        with source.opened() as (name, content):
            sent.body["input_file_id"] = (yield from self.upload(name, content, f"{sent.key}-file"))["id"]

    def _now(self, task: Ending, wait_s: float) -> Flow[Ending]:
        """The task as it is now, or the one in its place if the gateway lost it."""
        try:
            return type(task).of((yield from self.json("GET", task.path, wait_s=wait_s)), task.sent)
        except GatewayError as error:
            return (yield from self._again(task, error))

    def _again(self, task: Ending, error: GatewayError) -> Flow[Ending]:
        """Submit what the gateway has lost, as in a power cut, under the same key. Raises any other error."""
        if error.error.get("code") not in LOST or task.sent is None or not task.sent.lost():
            raise error
        return (yield from self._post(task.sent, type(task)))

    def _objects(self, path: str) -> Flow[None]:
        return self.lines(path, json.loads)

    def _dropped(self, batch: Batch) -> Flow[None]:
        """Delete an ended batch with its files, or cancel it: its files expire."""
        if not batch.ended:
            yield from self._suppressed("POST", f"{batch.path}/cancel")
            return
        for name in ("input_file_id", "output_file_id", "error_file_id"):
            if (file_id := batch.record[name]) is not None:
                yield from self._suppressed("DELETE", f"/v1/files/{file_id}")
        yield from self._suppressed("DELETE", batch.path)

    def _suppressed(self, method: str, path: str) -> Flow[None]:
        with contextlib.suppress(MedusaqError):
            answer((yield from self.once(method, path)))


class _Pieces:
    """The text of a job's events; after a break what was given before is left out."""

    def __init__(self, job: Job) -> None:
        self.job = job  # as the last event has it
        self.given = self._read = 0  # characters, of all responses and of this one
        self._events = EventReader()

    def begin(self) -> None:
        """Before each response."""
        self._events, self._read = EventReader(), 0

    def read(self, block: bytes) -> list[str]:
        pieces = []
        for name, data in self._events.read(block):
            if name == "done":
                self.job = Job.of(data)
            elif name == "error":
                raise GatewayError(httpx.codes.UNAUTHORIZED, data["error"])
            elif name == "text":
                new = data["text"][max(0, self.given - self._read) :]
                self._read += len(data["text"])
                self.given = max(self.given, self._read)
                pieces += [new] if new else []
        return pieces


def _path(kind: str, name: str) -> str:
    return f"{kind}/{quote(name, safe='')}"


def _sorted(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The fields of the batch, of its table, and of its requests."""
    kinds = [Schedule.__annotations__, Table.__annotations__]
    schedule, table = ({name: fields[name] for name in kind if name in fields} for kind in kinds)
    return schedule, table, {name: fields[name] for name in fields if name not in {*schedule, *table}}


class _Source:
    """The file of a batch, or the rows that are written to one, as often as they are needed."""

    def __init__(self, rows: Rows) -> None:
        self.is_file = isinstance(rows, (str, Path))
        self._rows = rows
        self._content: IO[bytes] | None = None
        self._spent = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[str, IO[bytes]]]:
        """The name and the content; inside of another opened() the same. Raises MedusaqError."""
        if self._content is not None:
            yield self._name, self._content
            return
        try:
            self._content = self._read()
            yield self._name, self._content
        finally:
            self.close()

    def close(self) -> None:
        """Before the end of opened(): nobody reads it again."""
        if self._content is not None:
            self._content.close()
        self._content = None

    @property
    def _name(self) -> str:
        return Path(self._rows).name if isinstance(self._rows, (str, Path)) else ROWS_NAME

    def _read(self) -> IO[bytes]:
        if isinstance(self._rows, (str, Path)):
            try:
                return Path(self._rows).open("rb")
            except OSError as error:
                raise MedusaqError(f"cannot read {self._rows}: {error.strerror}") from None
        if self._spent and isinstance(self._rows, Iterator):
            raise MedusaqError(
                "the gateway lost the batch, and its rows came from an iterator: submit them again"
            )
        self._spent = True
        with contextlib.ExitStack() as exits:
            written = exits.enter_context(tempfile.TemporaryFile())
            written.writelines(_lines(self._rows))  # whoever has more rows than memory gives an iterator
            if not written.tell():
                raise MedusaqError("there are no rows")
            exits.pop_all()
        return written


def _lines(rows: Iterable[Any] | Frame) -> Iterator[bytes]:
    """A line of JSON for each row. Raises MedusaqError."""
    from tables.base.errors import TableError
    from tables.sources.frames import frame_rows

    if isinstance(rows, Mapping):
        raise MedusaqError("the rows are one dictionary: put it into a list, also if it is the only row")
    try:
        for number, row in enumerate(frame_rows(rows) or _iterated(rows), 1):
            yield _line(row, number)
    except TableError as error:
        raise MedusaqError(str(error)) from None


def _iterated(rows: Any) -> Iterator[Any]:
    try:
        return iter(rows)
    except TypeError:
        raise MedusaqError(f"{_kind(rows)} has no rows") from None


def _line(row: Any, number: int) -> bytes:
    from tables.base.values import json_value

    place = f"row {number}"
    if not isinstance(row, str) and not hasattr(row, "keys"):
        raise MedusaqError(f"{place}: {_kind(row)} is neither a text nor a dictionary")
    try:
        value = {}
        for column, item in ({PROMPT: row} if isinstance(row, str) else dict(row)).items():
            place = f"row {number}, {column}"
            value[str(column)] = json_value(item)
        place = f"row {number}"
        return json.dumps(value, ensure_ascii=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise MedusaqError(f"{place}: {error}") from None


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__name__}"
