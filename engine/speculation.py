"""Speculation that pays: which sources draft, and which of their nodes are verified, decided each step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

from engine.draft import DraftSource, Tree
from engine.latency import LatencyProfile
from engine.policy import TimeDebt, choose_nodes, floor, merge, pool, take
from engine.request import Decoding
from engine.sequence import Sequence

FLOOR_NODES = 16  # rows looked ahead for the cheapest way to add some
FLOOR_STEPS = 64  # steps for which that answer holds
WORTH_WINDOW = 50.0  # times a source was asked, after which an old one counts 1/e
PROBE_STEPS = 32  # a source that has not paid is asked again after so many steps
NEEDS = 3  # values of _need
SURE = 0.5  # survival from which a candidate of an earlier source makes a later one less needed


class ForcedSource(Protocol):
    """Drafts whether or not it pays. Needs hidden states."""

    def force(self, sequences: Many[Sequence], profile: LatencyProfile) -> list[Tree]:
        """For each sequence the tree that is best on average; none without a hidden state."""
        ...


class Worth:
    """Seconds that asking a source has gained a request, its own cost taken off: a decayed mean."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._wait = 0  # steps until the next probe

    @property
    def known(self) -> bool:
        return self._mean is not None

    @property
    def due(self) -> bool:
        """Whether to ask: always while it pays, now and then otherwise."""
        return self._mean is None or self._mean > 0 or self._wait <= 0

    def tick(self) -> None:
        self._wait -= 1

    def note(self, gained: float, cost: float) -> None:
        if self._mean is None:
            self._mean = cost  # so that it is asked a while before it must have paid
        self._mean += (gained - cost - self._mean) / WORTH_WINDOW
        self._wait = PROBE_STEPS


Asked = tuple[str, int, Worth, float]  # source, sequence, the source's worth there, seconds it took


@dataclass(slots=True)
class _Step:
    """The step whose call is under way."""

    requests: int
    counted: bool  # against the time debt: no request had forced drafts
    spent: float = 0.0  # seconds in draft()
    accepted: int = 0
    rows: int = 0  # of the call


class Speculation(DraftSource):
    """All sources behind one: asks those that have paid, pools their nodes, keeps the ones worth a row.

    Requests with decoding "normal" are never drafted for; those with "medusa" always, by `forced`.
    """

    name = "speculation"

    def __init__(
        self, profile: LatencyProfile, sources: Many[DraftSource], forced: ForcedSource | None = None
    ) -> None:
        """sources: the cheapest first, since a later one is asked in the light of what earlier ones gave."""
        self.profile = profile
        self.debt = TimeDebt()
        self._sources, self._forced = tuple(sources), forced
        self._worth: defaultdict[tuple[str, int, int], Worth] = defaultdict(Worth)
        self._floors: dict[int, float] = {}
        self._steps = 0
        self._step: _Step | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self._sources)

    # One step: draft, then the engine's decode call, then what it learned

    def draft(self, sequences: Many[Sequence], limit: int) -> list[Tree]:
        began = time.perf_counter()
        self._settle()
        trees: list[Tree] = [[] for _ in sequences]
        kinds = [s.request.decoding for s in sequences]
        forced = [i for i, kind in enumerate(kinds) if kind is Decoding.MEDUSA]
        auto = [i for i, kind in enumerate(kinds) if kind is Decoding.AUTO]
        if forced and self._forced and limit > 0:
            for i, tree in zip(
                forced, self._forced.force([sequences[i] for i in forced], self.profile), strict=True
            ):
                trees[i] = tree
                limit -= len(tree)
        self.needs_hidden = bool(forced) and self._forced is not None
        rows = len(sequences) + sum(map(len, trees))
        if auto and limit > 0 and not self.debt.paused:
            chosen = self._draft_auto([sequences[i] for i in auto], rows, limit)
            for i, tree in zip(auto, chosen, strict=True):
                trees[i] = tree
        self._step = _Step(
            requests=len(sequences),
            counted=not forced,
            spent=time.perf_counter() - began,
        )
        return trees

    def observe(self, sequence: Sequence, tree: Tree, accepted: list[int]) -> None:  # noqa: ARG002
        if self._step:
            self._step.accepted += len(accepted)

    def timed(self, rows: int, seconds: float) -> None:
        self.profile.observe(rows, seconds)
        if self._step:
            self._step.rows = rows

    def _settle(self) -> None:
        """Weigh the last step against plain decoding, for the same tokens.

        By the profile, not by the clock: a single call's noise is larger than what is weighed.
        """
        step, self._step = self._step, None
        if step is None or not step.counted or not step.rows:
            return
        tokens, took = step.requests + step.accepted, self.profile.seconds(step.rows)
        self.debt.step(step.spent + took, self.profile.seconds(step.requests) * tokens / step.requests)

    # Requests whose drafts must pay

    def _draft_auto(self, sequences: Many[Sequence], rows: int, limit: int) -> list[Tree]:
        """rows: of the call without these drafts."""
        began = time.perf_counter()
        size = (len(sequences) - 1).bit_length()
        trees: list[Tree] = [[] for _ in sequences]
        asked: list[Asked] = []
        least = self._least_survival(rows)
        for source in self._sources:
            worths = [self._worth[source.name, size, need] for need in range(NEEDS)]
            for worth in worths:
                worth.tick()
            chosen = [(i, worth) for i, tree in enumerate(trees) if (worth := worths[_need(tree)]).due]
            if source.needs_hidden:
                self.needs_hidden |= bool(chosen) or any(worth.known and worth.due for worth in worths)
                chosen = [(i, worth) for i, worth in chosen if sequences[i].hidden is not None]
            if not chosen:
                continue
            source.min_survival = least
            before = time.perf_counter()
            drafted = source.draft([sequences[i] for i, _ in chosen], limit)
            cost = (time.perf_counter() - before) / len(chosen)
            for (i, worth), tree in zip(chosen, drafted, strict=True):
                trees[i] = merge([trees[i], tree]) if trees[i] else tree
                asked.append((source.name, i, worth, cost))
        if not any(trees):
            for _, _, worth, cost in asked:
                worth.note(0.0, cost)
            return trees
        ranked = pool(trees)[:limit]
        survivals = [trees[t][i].survival for t, i in ranked]
        spent = time.perf_counter() - began
        nodes = choose_nodes(len(sequences), survivals, self.profile.seconds, rows=rows, spent=spent)
        taken = take(trees, ranked[:nodes])
        self._note_worth(asked, taken, nodes, rows, spent)
        return taken

    def _note_worth(
        self,
        asked: Many[tuple[str, int, Worth, float]],
        taken: Many[Tree],
        nodes: int,
        rows: int,
        spent: float,
    ) -> None:
        """Credit each source with the time that its nodes save beyond what their rows take."""
        seconds = self.profile.seconds
        expected = len(taken) + sum(node.survival for tree in taken for node in tree)
        a_token = (seconds(rows + nodes) + spent) / expected
        a_row = (seconds(rows + nodes) - seconds(rows)) / nodes if nodes else 0.0
        for name, i, worth, cost in asked:
            gained = sum(node.survival * a_token - a_row for node in taken[i] if node.source == name)
            worth.note(gained, cost)

    def _least_survival(self, rows: int) -> float:
        self._steps += 1
        if self._steps % FLOOR_STEPS == 0:
            self._floors.clear()
        if rows not in self._floors:
            self._floors[rows] = floor(rows, self.profile.seconds, FLOOR_NODES)
        return self._floors[rows]


def _need(tree: Tree) -> int:
    """How much a further source could still add: 0 when nothing is drafted yet, 2 when all is likely said."""
    if not tree:
        return 0
    return 2 if max(node.survival for node in tree) >= SURE else 1
