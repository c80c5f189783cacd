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
from medusaq.records import Batch, Job
from medusaq.requests import EVENTS_TIMEOUT_S, Pause, Requests, answer
from medusaq.steps import Flow, Give, Send, Sleep

JOBS, BATCHES = "/v1/jobs", "/v1/batches"
LONG_POLL_S = 30.0
ROWS_NAME = "rows.jsonl"  # its ending says what the rows are
PROMPT = "prompt"  # the column of rows that are text
WHOLE_PROMPT = "{{ prompt }}"
MAX_PAGE = 100

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
        pause = Pause()
        while not task.ended:
            left = LONG_POLL_S if until is None else until - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"{task.id} has not ended within {timeout_s:g} s: it is {task.status}")
            if isinstance(task, Batch):
                yield Sleep(min(pause.seconds(), left))
                wait_s = 0.0
            else:
                wait_s = min(max(1.0, left), LONG_POLL_S)
            task = type(task).of((yield from self.json("GET", task.path, wait_s=wait_s)))
        if isinstance(task, Job) and task.status != "succeeded":
            raise JobFailed(task)
        if isinstance(task, Batch) and task.status == "failed":
            raise BatchFailed(task)
        return task

    def cancel(self, task: Ending) -> Flow[Ending]:
        return type(task).of((yield from self.json("POST", f"{task.path}/cancel")))

    def stream(self, prompt: Prompt, fields: Mapping[str, Any]) -> Flow[None]:
        """Give the pieces of an answer's text. Raises JobFailed at the end of one that failed."""
        job = yield from self.submit(prompt, fields)
        try:
            pieces = _Pieces(job)

            def send() -> Send:
                pieces.begin()
                return Send("GET", f"{job.path}/events", EVENTS_TIMEOUT_S)

            yield from self.blocks(send, lambda _: 0, pieces.read)
            job = yield from self.wait(pieces.job, None)
        except Exception:
            raise
        except BaseException:  # Abandoned, Ctrl-C, a cancelled task: nobody reads it any more
            yield from self._suppressed("POST", f"{job.path}/cancel")
            raise

    def submit_batch(self, rows: Rows, fields: Mapping[str, Any]) -> Flow[Batch]:
        schedule, table, body = _sorted(fields)
        with _opened(rows) as (name, content):
            if not isinstance(rows, (str, Path)):
                table.setdefault("template", WHOLE_PROMPT)
            if table:
                table["body"] = body
                schedule.setdefault("endpoint", JOBS)
            elif body.keys() == {"model"}:
                schedule |= body
            elif body:
                raise MedusaqError(f"{', '.join(body)}: a file of batch lines says this in each line")
            file = yield from self.upload(name, content, uuid.uuid4().hex)
        what = {"endpoint": "/v1/chat/completions", **schedule, **table, "input_file_id": file["id"]}
        return (yield from self._created(BATCHES, what, Batch))

    def run(self, rows: Rows, fields: Mapping[str, Any], *, usage: bool) -> Flow[None]:
        """Give the rows with their answers, and leave nothing at the gateway."""
        batch = yield from self.submit_batch(rows, {"template": WHOLE_PROMPT, **fields})
        try:
            batch = yield from self.wait(batch, None)
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

    def _created(self, path: str, body: Mapping[str, Any], kind: type[Ending]) -> Flow[Ending]:
        """What a POST creates, once, even if the request has to be repeated."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return kind.of((yield from self.json("POST", path, json=body, headers=headers)))

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
        self._given = self._read = 0  # characters, of all responses and of this one
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
                new = data["text"][max(0, self._given - self._read) :]
                self._read += len(data["text"])
                self._given = max(self._given, self._read)
                pieces += [new] if new else []
        return pieces


def _path(kind: str, name: str) -> str:
    return f"{kind}/{quote(name, safe='')}"


def _sorted(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The fields of the batch, of its table, and of its requests."""
    kinds = [Schedule.__annotations__, Table.__annotations__]
    schedule, table = ({name: fields[name] for name in kind if name in fields} for kind in kinds)
    return schedule, table, {name: fields[name] for name in fields if name not in {*schedule, *table}}


@contextlib.contextmanager
def _opened(rows: Rows) -> Iterator[tuple[str, IO[bytes]]]:
    """The name and the content of a file, or of the file that rows are written to."""
    if isinstance(rows, (str, Path)):
        try:
            content: IO[bytes] = Path(rows).open("rb")  # noqa: SIM115
        except OSError as error:
            raise MedusaqError(f"cannot read {rows}: {error.strerror}") from None
        with content:
            yield Path(rows).name, content
        return
    with tempfile.TemporaryFile() as written:  # whoever has more rows than memory gives an iterator
        written.writelines(_lines(rows))
        if not written.tell():
            raise MedusaqError("there are no rows")
        yield ROWS_NAME, written


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
        return json.dumps(value, ensure_ascii=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise MedusaqError(f"{place}: {error}") from None


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__name__}"
