"""Structured answers: with drafts of what the schema forces, without them, and without any drafts."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from engine import Completion, EngineConfig, Request, SamplingParams, response_grammar
from engine.base.request import Drafted
from engine.core.draft_source import DraftSource, PlainDecoding
from engine.core.engine import Engine
from engine.medusa.medusa_source import HeadSource
from engine.sampling.grammar import FORM
from engine.speculative.controller import Speculation
from engine.speculative.grammar_source import GrammarSource
from engine.speculative.prompt_lookup import LookupSource
from engine.speculative.setup import speculate
from engine.weights.format_selection import open_model
from tests.support.measuring.report import Report, spread

MANY = 16
MAX_TOKENS = 300
ROUNDS = 3
FORMS = {"no blanks": {"whitespace_flexible": False}, "as json.dumps": FORM}
PROPERTIES = {
    "title": {"type": "string", "maxLength": 40},
    "author": {"type": "string", "maxLength": 30},
    "published_year": {"type": "integer", "minimum": 1500, "maximum": 2030},
    "genre": {"enum": ["fiction", "non-fiction", "poetry", "drama"]},
    "language": {"type": "string", "maxLength": 12},
    "is_translation": {"type": "boolean"},
    "page_count": {"type": "integer", "minimum": 1, "maximum": 2000},
    "rating": {"type": "number", "minimum": 0, "maximum": 5},
    "recommended_age": {"type": "integer", "minimum": 0, "maximum": 18},
    "setting": {"type": "string", "maxLength": 30},
}
BOOK = {"type": "object", "properties": PROPERTIES, "required": [*PROPERTIES]}
LABEL = {
    "type": "object",
    "properties": {"sentiment": {"enum": ["positive", "negative", "neutral"]}},
    "required": ["sentiment"],
}
BOOKS = [
    *("A Tale of Two Cities", "Moby-Dick", "The Trial", "Beloved", "Dune", "War and Peace", "The Hobbit"),
    *("Emma", "Ulysses", "Persuasion", "Middlemarch", "Walden", "Hamlet", "Don Quixote", "Frankenstein"),
    "Dracula",
]
PROMPTS = {
    "ten fields": (f"Describe the book as JSON with {', '.join(PROPERTIES)}: ", BOOK),
    "ten fields that the prompt does not name": ("Describe the book as JSON: ", BOOK),
    "one label": ("Is this positive, negative or neutral, as JSON with sentiment? I have just read ", LABEL),
}


COLUMNS = (
    *("answer", "requests", "plain tokens/s", "lookup, heads", "to plain", "and grammar", "to plain"),
    *("tokens a step without grammar", "with it", "of the grammar's tokens, accepted of verified"),
)


@dataclass(slots=True)
class _Side:
    """One way to draft, with what it has taken so far."""

    engine: Engine
    tokens: int = 0
    steps: int = 0  # of each request
    seconds: float = 0.0
    drafted: dict[str, Drafted] = field(default_factory=dict)


def measure(model: Path, report: Report) -> None:
    """What the form of whitespace costs, and what drafts of the schema's own text gain."""
    config = EngineConfig(model=str(model), slots=MANY)
    weights = open_model(config)
    first = Engine(config, weights)
    speculate(first, config)
    assert isinstance(first.draft_source, Speculation)
    _forms(first, first.draft_source, report)
    _drafts(config, first, first.draft_source, report)


def _forms(engine: Engine, measured: Speculation, report: Report) -> None:
    """Greedy answers with ten fields; surprise is that of the model without the grammar."""
    prompt, schema = PROMPTS["ten fields"]
    grammar = response_grammar(_format(schema)) or ""
    columns = ("blanks", "tokens an answer", "nats an answer", "forced tokens accepted of verified")
    with report.table("whitespace", *columns) as table:
        for name, form in FORMS.items():
            engine.set_draft_source(Speculation(measured.profile, [GrammarSource()]))
            for book in BOOKS:
                sampling = SamplingParams(
                    max_tokens=MAX_TOKENS, logprobs=0, grammar=grammar.replace(_inner(FORM), _inner(form))
                )
                engine.add(engine.prepare(Request(id=book, prompt=prompt + book, sampling=sampling), 0.0))
            done: list[Completion] = []
            while not engine.idle:
                done += (e.outcome for e in engine.step().ended if isinstance(e.outcome, Completion))
            nats = -sum(token.logprob for c in done for token in c.logprobs or ())
            drafted = sum((c.drafted["grammar"] for c in done if "grammar" in c.drafted), Drafted(0, 0))
            table.row(
                name,
                f"{sum(c.completion_tokens for c in done) / len(done):.1f}",
                f"{nats / len(done):.0f}",
                _accepted(drafted),
            )


def _accepted(drafted: Drafted) -> str:
    """Verified are those that the policy thinks worth it: few of many requests."""
    share = f" ({drafted.accepted / drafted.verified:.0%})" if drafted.verified else ""
    return f"{drafted.accepted} of {drafted.verified}{share}"


def _inner(form: dict[str, Any]) -> str:
    return json.dumps(form)[1:-1]


def _format(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _drafts(config: EngineConfig, first: Engine, measured: Speculation, report: Report) -> None:
    """Tokens a step and a second of each side, and the ratios to plain decoding.

    Answers are the same on all sides. Steps that compute prompts are left out, and so are those with fewer
    requests than asked for.
    """
    heads = [source for source in measured.sources if isinstance(source, HeadSource)]

    def speculation(*sources: DraftSource) -> Speculation:
        return Speculation(measured.profile, [*sources, *heads])

    with report.table("structured", *COLUMNS) as table:
        for (task, (prompt, schema)), requests in product(PROMPTS.items(), (1, MANY)):
            sides = [_Side(first), *(_Side(Engine(config, first.model)) for _ in range(2))]
            sides[0].engine.set_draft_source(PlainDecoding())
            sides[1].engine.set_draft_source(speculation(LookupSource()))
            sides[2].engine.set_draft_source(speculation(GrammarSource(), LookupSource()))
            ratios = [_round(sides, prompt, schema, requests, seed) for seed in range(ROUNDS)]
            plain, lookup, grammar = (f"{side.tokens / side.seconds:.1f}" for side in sides)
            _, to_plain, grammar_to_plain = (spread(own, 2) for own in zip(*ratios, strict=True))
            forced = sides[2].drafted.get("grammar", Drafted(0, 0))
            table.row(
                *(task, requests, plain, lookup, to_plain, grammar, grammar_to_plain),
                *(f"{side.tokens / side.steps:.2f}" for side in sides[1:]),
                _accepted(forced),
            )


def _round(sides: list[_Side], prompt: str, schema: object, requests: int, seed: int) -> list[float]:
    """The ratios of tokens a second to those of the first side, in one round of steps in turns."""
    books = random.Random(seed).sample(BOOKS, len(BOOKS))
    books = books[:8] if requests == 1 else books * 2
    before = [(side.tokens, side.seconds) for side in sides]
    runs = [(side, _run(side, [prompt + book for book in books], schema, requests, seed)) for side in sides]
    while runs:
        # The next step is of the side that has had the least time: a slow moment of the machine meets all.
        turn = min(runs, key=lambda run: run[0].seconds)
        if next(turn[1], None) is None:
            runs.remove(turn)
    speeds = [(s.tokens - t) / (s.seconds - took) for s, (t, took) in zip(sides, before, strict=True)]
    return [speed / speeds[0] for speed in speeds]


def _run(side: _Side, prompts: list[str], schema: object, requests: int, seed: int) -> Iterator[bool]:
    """Step by step, with so many requests running, until there are no more."""
    engine, coming = side.engine, prompts.copy()
    grammar = response_grammar(_format(schema))
    while coming or not engine.idle:
        while coming and len(engine.scheduler.running) + engine.scheduler.waiting < requests:
            number = len(coming)
            sampling = SamplingParams(
                max_tokens=MAX_TOKENS, grammar=grammar, temperature=0.7 * (number % 2), seed=seed
            )
            request = Request(id=str(number), prompt=coming.pop(), sampling=sampling)
            engine.add(engine.prepare(request, time.monotonic()))
        began = time.perf_counter()
        report = engine.step()
        if report.ready and not report.prompt_rows:
            side.seconds += time.perf_counter() - began
            side.tokens += report.emitted
            side.steps += report.ready
        for ended in report.ended:
            for name, drafted in getattr(ended.outcome, "drafted", {}).items():
                side.drafted[name] = side.drafted.get(name, Drafted(0, 0)) + drafted
        yield True
