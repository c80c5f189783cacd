"""Decodes prompts plainly and with drafts, one job at a time so that jobs do not share a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.base.errors import CliError, Interrupted
from cli.gateway.client import GatewayError, call
from tasks.records.job import TERMINAL, Decoding, Status, preview

WAYS = (Decoding.NORMAL, Decoding.MEDUSA, Decoding.AUTO)  # the first is the baseline
WAIT_S = 30  # of one long poll
FAILS_FOR_ALL = frozenset({"no_heads", "model_not_found"})  # errors that all other prompts would have too


@dataclass(frozen=True)
class Answer:
    """One answer, or several together, whose text is then empty. seconds leaves the queue out."""

    text: str
    tokens: int
    seconds: float
    steps: int
    verified: int  # draft tokens
    accepted: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_step(self) -> float | None:
        return self.tokens / self.steps if self.steps else None

    @property
    def acceptance(self) -> float | None:
        """None where nothing was drafted."""
        return self.accepted / self.verified if self.verified else None


@dataclass(frozen=True)
class Compared:
    """One prompt, its start on one line as title, and its answer each way; or why there is none."""

    title: str
    answers: Mapping[Decoding, Answer]
    failure: str | None = None

    def speed_up(self, way: Decoding) -> float | None:
        """Tokens a second by those of plain decoding."""
        plain = self.answers[Decoding.NORMAL].tokens_per_s
        return self.answers[way].tokens_per_s / plain if plain > 0 else None

    def same_text(self, way: Decoding) -> bool:
        return self.answers[way].text == self.answers[Decoding.NORMAL].text


def compare(url: str, jobs: Sequence[Mapping[str, Any]], done: Callable[[], object]) -> list[Compared]:
    """One for each job body, in order; done is called after each answer. Raises CliError."""
    return [_compare(url, job, done) for job in jobs]


def together(compared: Sequence[Compared]) -> Compared:
    """All prompts as one, those that failed left out."""
    good = [one for one in compared if one.failure is None]
    return Compared("all prompts", {way: _sum([one.answers[way] for one in good]) for way in WAYS})


def _compare(url: str, job: Mapping[str, Any], done: Callable[[], object]) -> Compared:
    body = {"seed": 0, **job, "priority": "interactive"}
    answers = {}
    try:
        # Fill the prefix cache, so that all ways start alike. MEDUSA detects missing heads early.
        _result(url, {**body, "max_tokens": 1, "decoding": Decoding.MEDUSA})
        for way in WAYS:
            answers[way] = _answer(_result(url, {**body, "decoding": way}))
            done()
    except GatewayError as refusal:
        if refusal.error.get("code") in FAILS_FOR_ALL:
            raise
        return Compared(preview(job), {}, str(refusal))
    except _JobFailed as failure:
        return Compared(preview(job), {}, str(failure))
    return Compared(preview(job), answers)


class _JobFailed(CliError):
    """A job ended without an answer."""


def _result(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a job, which is cancelled when the command is interrupted."""
    record = call(url, "POST", "/v1/jobs", json=body)
    path = f"/v1/jobs/{record['id']}"
    try:
        while record["status"] not in TERMINAL:
            record = call(url, "GET", path, wait_s=WAIT_S)
    except Interrupted:
        with contextlib.suppress(CliError):
            call(url, "POST", f"{path}/cancel")
        raise
    if record["error"] is not None:
        raise _JobFailed(f"{record['error']['code']}: {record['error']['message']}")
    if record["status"] != Status.SUCCEEDED:
        raise _JobFailed(f"the job was {record['status']}")
    result: dict[str, Any] = record["result"]
    return result


def _answer(result: Mapping[str, Any]) -> Answer:
    if (speculation := result.get("speculation")) is None:
        raise CliError("the model worker is older than this command and does not report its steps: update it")
    sources = speculation["sources"].values()
    return Answer(
        text=result["text"],
        tokens=result["usage"]["completion_tokens"],
        seconds=result["timing"]["total_s"] - result["timing"]["queue_s"],
        steps=speculation["steps"],
        verified=sum(source["verified"] for source in sources),
        accepted=sum(source["accepted"] for source in sources),
    )


def _sum(answers: Sequence[Answer]) -> Answer:
    return Answer(
        text="",
        tokens=sum(answer.tokens for answer in answers),
        seconds=sum(answer.seconds for answer in answers),
        steps=sum(answer.steps for answer in answers),
        verified=sum(answer.verified for answer in answers),
        accepted=sum(answer.accepted for answer in answers),
    )
