"""Compares ways of decoding: the same prompts, in one process, in interleaved steps."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from engine.base.config import EngineConfig
from engine.base.errors import EngineError
from engine.base.request import Completion, Decoding, Request, SamplingParams
from engine.core.draft_source import DraftSource, PlainDecoding
from engine.core.engine import Engine, StepReport
from engine.core.sequence import Ended
from engine.speculative.setup import speculate
from engine.weights.format_selection import open_model

ALL = "all"
LEAST_PAIRS = 8  # of one row: fewer say little of the spread
RESAMPLES = 4000  # of the bootstrap
CONFIDENCE = 0.95
SEED = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user would send, and what kind of task it is."""

    category: str
    text: str


@dataclass(frozen=True, slots=True)
class Mode:
    """A way of decoding. names: of the sources that `source` combines."""

    source: DraftSource = field(default_factory=PlainDecoding)
    names: tuple[str, ...] = ()
    decoding: Decoding = Decoding.AUTO


@dataclass(slots=True)
class Pass:
    """One run over some prompts in one mode: only steps that decode for every request and prefill none.

    verified_of, accepted_of: draft tokens by source, of all steps.
    """

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0  # for each request
    verified: int = 0
    accepted: int = 0
    speculative_s: float = 0.0  # seconds of steps with drafts
    outside_s: float = 0.0  # of these, outside llama.cpp
    verified_of: Counter[str] = field(default_factory=Counter)
    accepted_of: Counter[str] = field(default_factory=Counter)

    def note(self, report: StepReport, seconds: float) -> None:
        self.seconds += seconds
        self.tokens += report.emitted
        self.steps += report.ready
        self.verified += report.verified
        self.accepted += report.accepted
        if report.verified:
            self.speculative_s += seconds
            self.outside_s += seconds - report.decode_s

    def note_drafts(self, ended: Iterable[Ended]) -> None:
        for one in ended:
            if isinstance(one.outcome, Completion):
                for source, drafted in one.outcome.drafted.items():
                    self.verified_of[source] += drafted.verified
                    self.accepted_of[source] += drafted.accepted


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result. ratio_low: lower 95 % bound by bootstrap over pairs of runs."""

    requests: int
    category: str
    plain_tokens_per_s: float
    tokens_per_s: float
    ratio: float
    ratio_low: float
    tokens_per_step: float
    acceptance: float
    n_prompts: int

    def json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompts, plain and drafted; drafting: by which engine."""

    plain: Pass
    auto: Pass
    drafting: int


@dataclass(slots=True)
class Pairs:
    """All pairs of one row."""

    requests: int
    category: str
    pairs: list[Pair] = field(default_factory=list)
    prompts: set[str] = field(default_factory=set)

    def add(self, block: Sequence[Prompt], pair: Pair) -> None:
        self.pairs.append(pair)
        self.prompts.update(prompt.text for prompt in block)

    def row(self) -> Row:
        plain, auto = _total(pair.plain for pair in self.pairs), _total(pair.auto for pair in self.pairs)
        return Row(
            requests=self.requests,
            category=self.category,
            plain_tokens_per_s=plain.tokens / plain.seconds,
            tokens_per_s=auto.tokens / auto.seconds,
            ratio=auto.tokens / auto.seconds * plain.seconds / plain.tokens,
            ratio_low=_lower_bound(self.pairs),
            tokens_per_step=auto.tokens / auto.steps,
            acceptance=auto.accepted / auto.verified if auto.verified else 0.0,
            n_prompts=len(self.prompts),
        )

    def outside(self) -> float:
        """Share of the time of steps with drafts that is spent outside llama.cpp."""
        auto = _total(pair.auto for pair in self.pairs)
        return auto.outside_s / auto.speculative_s if auto.speculative_s else 0.0


def _total(passes: Iterable[Pass]) -> Pass:
    total = Pass()
    for one in passes:
        for name in Pass.__dataclass_fields__:
            setattr(total, name, getattr(total, name) + getattr(one, name))
    return total


def _lower_bound(pairs: Sequence[Pair]) -> float:
    """Of the ratio of sums, when the pairs are drawn again with replacement.

    Those in which one engine drafts are drawn apart from the others: what one engine is slower by cancels
    out in the ratio, so it is no uncertainty of it.
    """
    values = np.array([(p.plain.tokens, p.plain.seconds, p.auto.tokens, p.auto.seconds) for p in pairs])
    drafting = np.array([pair.drafting for pair in pairs])
    rng, sums = np.random.default_rng(SEED), np.zeros((RESAMPLES, 4))
    strata = [values[drafting == engine] for engine in np.unique(drafting)]
    if min(map(len, strata)) < 2:
        strata = [values]
    for part in strata:
        count, total = len(part), part.sum(axis=0)
        drawn = part[rng.integers(count, size=(RESAMPLES, count))].sum(axis=1)
        widen = np.sqrt(count / max(1, count - 1))  # few, drawn again, vary less than few
        sums += total + (drawn - total) * widen
    ratios = sums[:, 2] / sums[:, 3] * sums[:, 1] / sums[:, 0]
    return float(np.quantile(ratios, 1 - CONFIDENCE))


class DecodeBenchmark:
    """Two engines over one model, one plain and one with drafts, which decode the same prompts in turns.

    From pair to pair the engines change parts: of two equal ones, one may be 1% slower, by where its memory
    lies. Prefill is left out of both sides, and so are steps with fewer requests than the row says.
    """

    def __init__(self, config: EngineConfig, max_tokens: int) -> None:
        """Raises ModelLoadError or HeadsLoadError, and EngineError for a model that cannot take drafts."""
        first = Engine(config, open_model(config))
        if not first.model.can_share_prefixes:
            raise EngineError("a recurrent model cannot forget refused drafts: nothing to compare")
        speculate(first, config)
        self.sources = first.info.draft_sources
        self._drafting = Mode(first.draft_source, self.sources)
        self.engines = first, Engine(config, first.model)
        self._max_tokens = max_tokens

    def measure(
        self, prompts: Sequence[Prompt], requests: int, on_pair: Callable[[int, int], None]
    ) -> list[Pairs]:
        """The pairs of all prompts, and for one request at a time those of each category too.

        on_pair(done, of) is called after each pair. Raises RequestRefused for a prompt that does not fit.
        """
        total = Pairs(requests, ALL)
        categories: dict[str, Pairs] = {}
        of_prompts = blocks(prompts, requests)
        used: Counter[tuple[str, int]] = Counter()  # how often which engine drafted
        for done, block in enumerate(of_prompts, 1):
            kind = block[0].category if requests == 1 else ALL
            drafting = min((used[kind, e], used[ALL, e], e) for e in (0, 1))[2]
            pair = self._pair([prompt.text for prompt in block], requests, drafting)
            on_pair(done, len(of_prompts))
            # Answered by a single token: nothing was decoded.
            if not (pair.plain.tokens and pair.auto.tokens):
                continue
            if requests == 1:
                used[kind, drafting] += 1
                categories.setdefault(kind, Pairs(requests, kind)).add(block, pair)
                if block[0].text in total.prompts:  # again, for its category's sake
                    continue
            used[ALL, drafting] += 1
            total.add(block, pair)
        return [pairs for pairs in (total, *categories.values()) if pairs.pairs]

    def warm_up(self, prompt: Prompt) -> None:
        """Run a pair that is not counted."""
        for drafting in (0, 1):
            self._pair([prompt.text], 1, drafting)

    def _pair(self, prompts: Sequence[str], requests: int, drafting: int) -> Pair:
        """drafting: which engine."""
        modes = [Mode(), Mode()]
        modes[drafting] = self._drafting
        passes = run_in_turns(self.engines, modes, prompts, requests, self._max_tokens)
        return Pair(passes[1 - drafting], passes[drafting], drafting)


def run_in_turns(
    engines: Sequence[Engine],
    modes: Sequence[Mode],
    prompts: Sequence[str],
    requests: int,
    max_tokens: int,
) -> list[Pass]:
    """A pass of each idle engine in its mode, over the same prompts, with so many requests at once.

    The next step is of the engine that has had the least time: a slow moment of the machine meets all.
    """
    passes = [Pass() for _ in engines]
    sides = []
    for engine, mode, noted in zip(engines, modes, passes, strict=True):
        engine.set_draft_source(mode.source, mode.names)
        requested = _endless(prompts, SamplingParams(max_tokens=max_tokens), mode.decoding)
        sides.append((noted, _run(engine, noted, requested, len(prompts), requests)))
    while sides:
        side = min(sides, key=lambda s: s[0].seconds)
        if next(side[1], None) is None:
            sides.remove(side)
    return passes


def _endless(prompts: Sequence[str], sampling: SamplingParams, decoding: Decoding) -> Iterator[Request]:
    for i, text in enumerate(itertools.cycle(prompts)):
        yield Request(id=str(i), prompt=text, sampling=sampling, decoding=decoding)


def _run(
    engine: Engine, noted: Pass, coming: Iterator[Request], count: int, requests: int
) -> Iterator[StepReport]:
    """Step by step, with so many requests running until the first `count` are answered.

    Places that become free meanwhile are filled with the next ones.
    """
    unanswered = {str(i) for i in range(count)}
    while unanswered:
        while len(engine.scheduler.running) + engine.scheduler.waiting < requests:
            request = next(coming)
            engine.add(engine.prepare(request, time.monotonic()))
        began = time.perf_counter()
        report = engine.step()
        if report.ready == requests and not report.prompt_rows:
            noted.note(report, time.perf_counter() - began)
        noted.note_drafts(report.ended)
        unanswered -= {ended.request_id for ended in report.ended}
        yield report
    for sequence in list(engine.scheduler.sequences()):
        sequence.cancelled = True
    while not engine.idle:
        noted.note_drafts(engine.step().ended)


def blocks(prompts: Sequence[Prompt], requests: int) -> list[list[Prompt]]:
    """As many prompts as run at once, shuffled.

    Repeated until there are LEAST_PAIRS of them, and at one request of each category.
    """
    rng, made = random.Random(SEED), []
    if requests == 1:
        by_category: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            by_category.setdefault(prompt.category, []).append(prompt)
        for own in by_category.values():
            rounds = -(-LEAST_PAIRS // len(own))
            made += [[prompt] for prompt in own * rounds]
        rng.shuffle(made)
        return made
    count = max(LEAST_PAIRS, -(-len(prompts) // requests))
    stream = itertools.chain.from_iterable(rng.sample(prompts, len(prompts)) for _ in itertools.count())
    return [list(itertools.islice(stream, requests)) for _ in range(count)]
