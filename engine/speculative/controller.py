"""Speculation that pays: which sources draft, and which of their nodes are verified, decided each step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol

from engine.base.request import Decoding
from engine.core.draft_source import DraftSource, Tree
from engine.core.sequence import Sequence
from engine.speculative.latency_model import LatencyProfile
from engine.speculative.verification_budget import TimeDebt, choose_nodes, floor, merge, pool, take

FLOOR_NODES = 24  # rows looked ahead for the cheapest way to add some
FLOOR_STEPS = 64  # steps for which that answer holds
WORTH_WINDOW = 50.0  # times a source was asked, after which an old one counts 1/e
HOPE = 0.2  # of its cost, as which a new source's gain counts: it is asked some times before it must pay
OWN_PRIOR = 2.0  # times asked, as which the mean of all counts beside a request's own
PROBE_SHARE = 0.005  # of all time, spent on asking a source that has not paid lately: copies begin anywhere
HIDDEN_PROBE_SHARE = 0.001  # the same of one that needs hidden states: it pays by the kind of text, if at all
HIDDEN_STEPS = 4  # hidden states are given for so many steps more, since starting and ending that takes time
FIRST_PLAIN, MOST_PLAIN = 8, 128  # steps with drafts until one without, doubled each time: what pays is a
# matter of T(n) and T of plain calls, and the latter is seen only then
SURE = 0.5  # survival from which a candidate of an earlier source makes a later one less needed


class ForcedSource(Protocol):
    """Drafts whether or not it pays. Needs hidden states."""

    def force(self, sequences: Many[Sequence], profile: LatencyProfile, limit: int) -> list[Tree]:
        """For each sequence the tree that is best on average; none without a hidden state."""
        ...


class Worth:
    """Seconds that asking a source has gained a request, its own cost taken off: a decayed mean of all."""

    def __init__(self) -> None:
        self.mean: float | None = None

    def note(self, net: float, cost: float) -> None:
        if self.mean is None:
            self.mean = HOPE * cost
        self.mean += (net - self.mean) / WORTH_WINDOW


class OwnWorth:
    """The same for one request, whose text may be easier or harder than most."""

    def __init__(self) -> None:
        self._sum = 0.0  # of what it gained, decayed

    def pays(self, worth: Worth) -> bool:
        return worth.mean is None or worth.mean * OWN_PRIOR + self._sum > 0

    def note(self, net: float) -> None:
        self._sum = self._sum * (1 - 1 / WORTH_WINDOW) + net


@dataclass(slots=True, eq=False)
class _Account:
    """A source, and what asking it has been worth: by number of requests and by what they had already."""

    source: DraftSource
    due: float = 0.0  # when to ask it though it does not pay, on the clock of Speculation
    worth: defaultdict[tuple[int, int], Worth] = field(default_factory=lambda: defaultdict(Worth))

    def own(self, sequence: Sequence) -> OwnWorth:
        own: OwnWorth | None = sequence.memory.get(self)
        if own is None:
            own = sequence.memory[self] = OwnWorth()
        return own


@dataclass(slots=True)
class _Asked:
    """A source was asked for a request, and took so many seconds."""

    source: str
    request: int
    worth: Worth
    own: OwnWorth
    cost: float = 0.0

    def note(self, gained: float) -> None:
        self.worth.note(gained - self.cost, self.cost)
        self.own.note(gained - self.cost)


@dataclass(slots=True)
class _Step:
    """The step whose call is under way."""

    requests: int
    counted: bool  # against the time debt: some requests choose for themselves, and none is forced
    spent: float = 0.0  # seconds in draft()
    accepted: int = 0
    expected: float = 0.0  # seconds of the call, by the profile


@dataclass(slots=True)
class _Plain:
    """How long ago a call without drafts was timed."""

    steps: int = 0
    most: int = FIRST_PLAIN

    @property
    def due(self) -> bool:
        return self.steps >= self.most

    def note(self, plain: bool) -> None:
        if plain and self.due:
            self.most = min(2 * self.most, MOST_PLAIN)
        self.steps = 0 if plain else self.steps + 1


@dataclass(frozen=True, slots=True)
class _Rest:
    """While the same requests run, no source pays: until the first is due to be asked again."""

    requests: Many[Sequence]
    until: float  # on the clock of Speculation
    step_s: float


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
        self._accounts, self._forced = [_Account(source) for source in sources], forced
        self._floors: dict[int, float] = {}
        self._steps = 0
        self._step: _Step | None = None
        self._clock = 0.0  # seconds of decode calls, by the profile
        self._rest: _Rest | None = None
        self._hidden_until = 0.0
        self._plain: defaultdict[int, _Plain] = defaultdict(_Plain)  # by rows

    @property
    def needs_hidden(self) -> bool:  # type: ignore[override]
        """While a source that needs them is asked, or soon will be."""
        return self._clock < self._hidden_until

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(account.source.name for account in self._accounts)

    # One step: draft, then the engine's decode call, then what it learned

    def draft(self, sequences: Many[Sequence], limit: int) -> list[Tree]:
        began = time.perf_counter()
        self._settle()
        if self._rest and self._clock < self._rest.until and self._rest.requests == sequences:
            self._clock += self._rest.step_s
            self.debt.step(1.0, 1.0)
            return [[] for _ in sequences]
        self._rest = None
        trees: list[Tree] = []
        auto, forced, cells = [], [], 0
        for i, sequence in enumerate(sequences):
            trees.append([])
            cells += sequence.length
            if sequence.request.decoding is Decoding.AUTO:
                auto.append(i)
            elif sequence.request.decoding is Decoding.MEDUSA:
                forced.append(i)
        self.profile.context = cells / len(sequences) if sequences else 0.0
        rows = len(sequences)
        if forced and self._forced:
            self._keep_hidden(rows)
            if limit > 0:
                forced_trees = self._forced.force([sequences[i] for i in forced], self.profile, limit)
                for i, tree in zip(forced, forced_trees, strict=True):
                    trees[i] = tree
                    limit -= len(tree)
                    rows += len(tree)
        if auto and limit > 0 and not self.debt.paused and not self._plain[rows].due:
            chosen = self._draft_auto([sequences[i] for i in auto], rows, limit)
            for i, tree in zip(auto, chosen, strict=True):
                trees[i] = tree
        spent = time.perf_counter() - began
        self._step = _Step(len(sequences), counted=bool(auto) and not forced, spent=spent)
        return trees

    def observe(self, sequence: Sequence, tree: Tree, accepted: list[int]) -> None:  # noqa: ARG002
        if self._step:
            self._step.accepted += len(accepted)

    def timed(self, rows: int, seconds: float) -> None:
        if self._step:
            self._step.expected = self.profile.observe(rows, seconds)
            self._plain[self._step.requests].note(rows == self._step.requests)
        else:  # at rest
            self.profile.last_rows = rows

    def _settle(self) -> None:
        """Weigh the last step against plain decoding, for the same tokens.

        By the profile, not by the clock: a single call's noise is larger than what is weighed.
        """
        step, self._step = self._step, None
        if step is None:
            return
        self._clock += step.expected
        if not step.counted or not step.expected:
            return
        plain = self.profile.seconds(step.requests)
        self.debt.step((step.spent + step.expected) / plain, (step.requests + step.accepted) / step.requests)

    # Requests whose drafts must pay

    def _draft_auto(self, sequences: Many[Sequence], rows: int, limit: int) -> list[Tree]:
        """rows: of the call without these drafts."""
        began = now = time.perf_counter()
        self._steps += 1
        size = (len(sequences) - 1).bit_length()
        trees: list[Tree] = [[] for _ in sequences]
        asked: list[_Asked] = []
        paying = False
        least = self._least_survival(rows)
        accounts = [a for a in self._accounts if not (self.debt.strained and a.source.needs_hidden)]
        for account in accounts:
            source = account.source
            due = self._clock >= account.due  # then all at once, which costs hardly more than one
            chosen: list[_Asked] = []
            hidden = False
            for i, sequence in enumerate(sequences):
                worth, own = account.worth[size, _need(trees[i])], account.own(sequence)
                pays = own.pays(worth)
                paying |= pays
                if not (pays or due):
                    continue
                hidden = source.needs_hidden
                if hidden and sequence.hidden is None:  # then it is asked at the next step
                    paying = True
                    continue
                chosen.append(_Asked(source.name, i, worth, own))
            if hidden:
                self._keep_hidden(rows)
            if not chosen:
                continue
            source.min_survival = least
            drafted = source.draft([sequences[one.request] for one in chosen], limit)
            before, now = now, time.perf_counter()
            took = now - before
            if due:
                # One that was interrupted seems dear: no more than a step counts, so that its turn comes.
                share = HIDDEN_PROBE_SHARE if source.needs_hidden else PROBE_SHARE
                account.due = self._clock + min(took, self.profile.seconds(rows)) / share
            asked += chosen
            for one, tree in zip(chosen, drafted, strict=True):
                one.cost = took / len(chosen)
                if tree:
                    before_it = trees[one.request]
                    trees[one.request] = merge([before_it, tree]) if before_it else tree
        if not any(trees):
            for one in asked:
                one.note(0.0)
            if not paying:
                until = min((account.due for account in accounts), default=0.0)
                self._rest = _Rest(list(sequences), until, self.profile.seconds(rows))
            return trees
        ranked = pool(trees)[:limit]
        survivals = [trees[t][i].survival for t, i in ranked]
        spent = time.perf_counter() - began
        nodes = choose_nodes(
            len(sequences), survivals, lambda n: self._seconds(n, rows), rows=rows, spent=spent
        )
        taken = take(trees, ranked[:nodes])
        self._note_worth(asked, taken, nodes, rows, spent)
        return taken

    def _keep_hidden(self, rows: int) -> None:
        """From this call on."""
        self._hidden_until = self._clock + HIDDEN_STEPS * self.profile.seconds(rows)

    def _seconds(self, rows: int, plain_rows: int) -> float:
        """Of the next call, and of the way back to plain ones: of two shapes, both are paid for."""
        back = self.profile.switch if rows != plain_rows else 0.0
        return self.profile.next_call(rows) + back

    def _note_worth(
        self,
        asked: Many[_Asked],
        taken: Many[Tree],
        nodes: int,
        rows: int,
        spent: float,
    ) -> None:
        """Credit each source with the time that its nodes save beyond what their rows take."""
        expected = len(taken) + sum(node.survival for tree in taken for node in tree)
        took, plain = self._seconds(rows + nodes, rows), self._seconds(rows, rows)
        a_token = (took + spent) / expected
        a_row = (took - plain) / nodes if nodes else 0.0
        for one in asked:
            own = (node for node in taken[one.request] if node.source == one.source)
            one.note(sum(node.survival * a_token - a_row for node in own))

    def _least_survival(self, rows: int) -> float:
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
