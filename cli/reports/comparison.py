"""Decodes prompts plainly and with drafts, one job at a time so that jobs do not share a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.base.errors import CliError
from cli.gateway.job_run import JobFailed, run_job
from cli.reports.difference import Difference, find_difference
from medusaq.errors import GatewayError
from tasks.records.job import Decoding, preview

WAYS = (Decoding.NORMAL, Decoding.MEDUSA, Decoding.AUTO)  # the first is the baseline
FAILS_FOR_ALL = frozenset({"no_heads", "model_not_found"})  # errors that all other prompts would have too


@dataclass(frozen=True)
class Answer:
    """One answer, or several together, whose text and token_ids are then empty.

    seconds leaves the queue out. drafted, accepted: draft tokens that were verified, and of these accepted,
    by source. token_ids: the one that ended the answer included.
    """

    text: str
    tokens: int
    seconds: float
    steps: int
    drafted: Mapping[str, int]
    accepted: Mapping[str, int]
    token_ids: Sequence[int] = ()

    @property
    def own_tokens(self) -> int:
        """Those that no source had drafted."""
        return self.tokens - sum(self.accepted.values())

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_step(self) -> float | None:
        return self.tokens / self.steps if self.steps else None

    @property
    def acceptance(self) -> float | None:
        """None where nothing was drafted."""
        drafted = sum(self.drafted.values())
        return sum(self.accepted.values()) / drafted if drafted else None


@dataclass(frozen=True)
class Compared:
    """One prompt, its start on one line as title, and its answer each way; or why there is none.

    differences: from the text of plain decoding, of the ways that have another.
    """

    title: str
    answers: Mapping[Decoding, Answer]
    failure: str | None = None
    differences: Mapping[Decoding, Difference] = field(default_factory=dict)

    def speed_up(self, way: Decoding) -> float | None:
        """Tokens a second by those of plain decoding."""
        plain = self.answers[Decoding.NORMAL].tokens_per_s
        return self.answers[way].tokens_per_s / plain if plain > 0 else None


def compare(url: str, jobs: Sequence[Mapping[str, Any]], done: Callable[[], object]) -> list[Compared]:
    """One for each job body, in order; done is called after each answer. Raises CliError."""
    return [_compare(url, job, done) for job in jobs]


def together(compared: Sequence[Compared]) -> Compared:
    """All prompts as one, those that failed left out."""
    good = [one for one in compared if one.failure is None]
    return Compared("all prompts", {way: _sum([one.answers[way] for one in good]) for way in WAYS})


def _compare(url: str, job: Mapping[str, Any], done: Callable[[], object]) -> Compared:
    body = {"seed": 0, **job, "priority": "interactive", "return_token_ids": True}
    answers = {}
    try:
        # Fill the prefix cache, so that all ways start alike. MEDUSA detects missing heads early.
        run_job(url, {**body, "max_tokens": 1, "decoding": Decoding.MEDUSA}, may_be_cut=True)
        for way in WAYS:
            answers[way] = _answer(run_job(url, {**body, "decoding": way}))
            done()
    except GatewayError as refusal:
        if refusal.error.get("code") in FAILS_FOR_ALL:
            raise
        return Compared(preview(job), {}, str(refusal))
    except JobFailed as failure:
        return Compared(preview(job), {}, str(failure))
    plain = answers[Decoding.NORMAL]
    differences = {
        way: find_difference(url, body, plain.token_ids, answer.token_ids)
        for way, answer in answers.items()
        if answer.text != plain.text
    }
    return Compared(preview(job), answers, differences=differences)


def _answer(result: Mapping[str, Any]) -> Answer:
    if (speculation := result.get("speculation")) is None or "token_ids" not in result:
        raise CliError("the model worker is older than this command: update it")
    sources = speculation["sources"]
    return Answer(
        text=result["text"],
        tokens=result["usage"]["completion_tokens"],
        seconds=result["timing"]["total_s"] - result["timing"]["queue_s"],
        steps=speculation["steps"],
        drafted={name: source["verified"] for name, source in sources.items()},
        accepted={name: source["accepted"] for name, source in sources.items()},
        token_ids=result["token_ids"],
    )


def _sum(answers: Sequence[Answer]) -> Answer:
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for answer in answers:
        drafted.update(answer.drafted)
        accepted.update(answer.accepted)
    return Answer(
        text="",
        tokens=sum(answer.tokens for answer in answers),
        seconds=sum(answer.seconds for answer in answers),
        steps=sum(answer.steps for answer in answers),
        drafted=drafted,
        accepted=accepted,
    )
