"""Work for a stack, over HTTP, by clients that repeat what was not answered and note what was accepted."""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import httpx

from tasks.records.batch import ENDED, BatchStatus
from tasks.records.job import Status
from tests.chaos.clients.client import Client
from tests.chaos.clients.hooks import Hooks
from tests.support.scripted import MODEL_NAME

ENDPOINT = "/v1/jobs"
UNDER_WAY = 2  # batches that background work keeps up
EARLY_EVERY = 10  # of so many jobs in the background ...
CANCELLED, LATE = 3, 6  # ... this one is cancelled at once, and that one has a deadline ...
DUE_AFTER = 2  # ... of so many times what it takes
CANCELLED_EVERY = 5  # batches
OTHER_EVERY = 4  # one job or line of so many names the other model


@dataclass(frozen=True, slots=True)
class Expected:
    """What becomes of a request: a text, or an error of this code; or it may end early, with less text.

    model: which has to answer, "" for any.
    """

    text: str = ""
    code: str = ""
    early: Status | None = None
    model: str = field(default="", compare=False)

    @property
    def status(self) -> Status:
        return Status.FAILED if self.code else Status.SUCCEEDED

    def allows(self, status: str, text: str, code: str) -> bool:
        """Whether it may have ended so."""
        if self.early is not None and status == self.early:
            return not code and self.text.startswith(text)
        return (status, text, code) == (self.status, self.text, self.code)

    def answered_by(self, model: str) -> bool:
        """Whether the answer may be of this model; "" is that there is none."""
        return not self.model or model in ("", self.model)


@dataclass
class Order:
    """A batch that was accepted: what is expected of each custom_id. cancelled: it may have been in time."""

    id: str
    lines: dict[str, Expected]
    cancelled: bool = False
    ended: bool = False
    judged: bool = False


@dataclass
class Accepted:
    """All that the gateway said yes to, and what of it has been looked at when it had ended.

    Grows from several threads; list and dict take that.
    """

    jobs: dict[str, Expected] = field(default_factory=dict)
    batches: list[Order] = field(default_factory=list)
    judged: set[str] = field(default_factory=set)  # ids of jobs
    unknown: set[str] = field(default_factory=set)  # jobs that were found and never said yes to
    asked: dict[str, str] = field(default_factory=dict)  # job or batch with a webhook -> the event of its end


class Load:
    """Single jobs and batches with webhooks, in the background and on demand.

    delay_s: what the engine takes for each. other: the model that some of it names; the rest names none.
    """

    def __init__(
        self, url: str, delay_s: float, hooks: Hooks, patience_s: float = 120.0, other: str | None = None
    ) -> None:
        self.url, self.delay_s, self.hooks, self.patience_s = url, delay_s, hooks, patience_s
        self.other = other
        self.accepted = Accepted()
        self.run = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.troubles: list[str] = []

    def client(self) -> Client:
        return Client(self.url, self.patience_s)

    def job(
        self,
        client: Client,
        script: str = "",
        early: Status | None = None,
        model: str | None = None,
        **fields: object,
    ) -> str:
        """A job with a word of its own is accepted; its id. script: words for the scripted engine. early: how
        it may end before it is done.
        """
        word = f"w{next(self._numbers)}"
        expected = Expected(word, early=early, model=self._answering(model))
        return self.submit(client, f"{script or self._script} {word}", expected, **_named(model), **fields)

    def submit(self, client: Client, prompt: str, expected: Expected, **fields: object) -> str:
        """A job of this prompt is accepted; its id."""
        told = {"webhook": {"url": self.hooks.url}}
        body = {"prompt": prompt, "metadata": {"run": self.run}, **told, **fields}
        job_id = str(client.post("/v1/jobs", body)["id"])
        self.accepted.jobs[job_id] = expected
        self.accepted.asked[job_id] = f"job.{expected.status}"
        return job_id

    def batch(self, client: Client, lines: int, extra: Iterable[tuple[str, Expected]] = ()) -> Order:
        """A batch is accepted, its last lines for the other model. extra: further prompts, and what is
        expected of them.
        """
        wanted: dict[str, Expected] = {}
        bodies: list[dict[str, str]] = []
        for n in range(lines):
            word = f"w{next(self._numbers)}"
            model = self.other if n >= lines - lines // OTHER_EVERY else None
            bodies.append({"prompt": f"{self._script} {word}"} | _named(model))
            wanted[f"line-{n}"] = Expected(text=word, model=self._answering(model))
        for prompt, expected in extra:
            wanted[f"line-{len(bodies)}"] = expected
            bodies.append({"prompt": prompt})
        content = b"".join(line(f"line-{n}", body) for n, body in enumerate(bodies))
        return self.order(client, client.upload(content), wanted)

    def order(self, client: Client, file_id: str, wanted: dict[str, Expected]) -> Order:
        asked = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        told = {"webhook": {"url": self.hooks.url}}
        order = Order(str(client.post("/v1/batches", asked | told)["id"]), wanted)
        self.accepted.batches.append(order)
        self.accepted.asked[order.id] = f"batch.{BatchStatus.COMPLETED}"
        return order

    # In the background

    def begin(self, jobs_per_s: float, lines: int) -> None:
        """Until end(): so many jobs a second, every other one bulk, and batches of so many lines, if any."""
        for work in (partial(self._jobs, jobs_per_s), *([partial(self._batches, lines)] if lines else [])):
            thread = threading.Thread(target=self._guarded, args=(work,))
            self._threads.append(thread)
            thread.start()

    @property
    def busy(self) -> bool:
        """Between begin() and end()."""
        return bool(self._threads)

    def end(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _guarded(self, work: Callable[[Client], None]) -> None:
        client = self.client()
        try:
            work(client)
        except Exception as error:  # it must not end unseen
            self.troubles.append(f"the load broke off: {error!r}")
        finally:
            client.close()

    def _jobs(self, per_s: float, client: Client) -> None:
        kinds = itertools.cycle(("interactive", "bulk"))
        due = time.monotonic()
        for number in itertools.count():
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return
            kind = next(kinds)
            model = self.other if number // 2 % OTHER_EVERY == 0 else None  # of both kinds
            if number % EARLY_EVERY == CANCELLED:
                job_id = self.job(client, early=Status.CANCELLED, model=model, priority=kind)
                client.post(f"/v1/jobs/{job_id}/cancel", {})
            elif number % EARLY_EVERY == LATE:
                self._due_soon(client, kind, model)
            else:
                self.job(client, model=model, priority=kind)
            due = max(due + 1 / per_s, time.monotonic() - 1)  # after an outage no flood

    def _due_soon(self, client: Client, kind: str, model: str | None) -> None:
        """A job that may expire, unless its deadline has passed before anybody took it."""
        try:
            deadline = time.time() + DUE_AFTER * self.delay_s
            self.job(client, early=Status.EXPIRED, model=model, priority=kind, deadline=deadline)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.BAD_REQUEST:
                raise

    def _batches(self, lines: int, client: Client) -> None:
        mine: list[Order] = []
        while not self._stopping.wait(0.2):
            for order in mine:
                status = client.get(f"/v1/batches/{order.id}")["status"]
                order.ended = status in ENDED
                if order.cancelled and status == BatchStatus.IN_PROGRESS:
                    client.post(f"/v1/batches/{order.id}/cancel", {})
            mine = [order for order in mine if not order.ended]
            if len(mine) < UNDER_WAY:
                order = self.batch(client, lines)
                order.cancelled = len(self.accepted.batches) % CANCELLED_EVERY == 0
                mine.append(order)

    @property
    def _script(self) -> str:
        return f"delay={self.delay_s}"

    def _answering(self, model: str | None) -> str:
        """Which model has to answer what names this one, where there are two."""
        return (model or MODEL_NAME) if self.other else ""


def _named(model: str | None) -> dict[str, str]:
    """The fields of a request that names a model, or none."""
    return {} if model is None else {"model": model}


def line(custom_id: str, body: object) -> bytes:
    """A line of a batch's file."""
    return (
        json.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}).encode() + b"\n"
    )
