"""Decides at each step which sources draft, and which of their nodes are worth verifying."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.base.request import Decoding
from engine.core.draft_source import DraftSource
from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree, likeliest_path
from engine.speculative.latency_model import LatencyProfile
from engine.speculative.regret_budget import RegretBudget
from engine.speculative.verification_budget import (
    choose_nodes,
    choose_width,
    floor,
    keep_nodes,
    merge,
    rank_nodes,
)

FLOOR_NODES = 24  # additional rows considered for the least path probability worth a row
FLOOR_STEPS = 64  # steps until that is computed again
GAIN_WINDOW = 50.0  # calls of a source after which an old one counts 1/e
INITIAL_GAIN = 0.2  # assumed gain of a new source, as a share of its cost: some calls to prove itself
SHARED_WEIGHT = 2.0  # weight of the mean gain of all requests against a request's own, in calls
PROBE_SHARE = 0.005  # of all time, spent on sources that did not pay lately: the text may have changed
HIDDEN_PROBE_SHARE = 0.001  # the same for sources that need hidden states: they depend less on the position
HIDDEN_STEPS = 4  # steps for which hidden states stay on: switching them on or off takes time
# Steps with drafts until one without, doubled each time: only that one measures T of plain calls.
PLAIN_INTERVAL, MAX_PLAIN_INTERVAL = 8, 128
CONFIDENT = 0.5  # path probability from which an earlier source's draft makes a later source less useful


class ForcedSource(Protocol):
    """Drafts for requests with decoding "medusa", whether or not that saves time. Needs hidden states."""

    def force(
        self, sequences: Sequence[SequenceState], profile: LatencyProfile, rows: int, limit: int
    ) -> list[Tree]:
        """For each sequence the tree that is best on average; an empty one without a hidden state.

        rows: of the call without drafts. limit: free rows of the call.
        """
        ...


class ExpectedGain:
    """Seconds that a call of a source saves a request, less its cost: decayed mean over all requests."""

    def __init__(self) -> None:
        self.mean: float | None = None

    def note(self, net: float, cost: float) -> None:
        if self.mean is None:
            self.mean = INITIAL_GAIN * cost
        self.mean += (net - self.mean) / GAIN_WINDOW


class RequestGain:
    """The same for a single request, whose text may be easier or harder than most."""

    def __init__(self) -> None:
        self._sum = 0.0  # decayed

    def pays(self, gain: ExpectedGain) -> bool:
        return gain.mean is None or gain.mean * SHARED_WEIGHT + self._sum > 0

    def note(self, net: float) -> None:
        self._sum = self._sum * (1 - 1 / GAIN_WINDOW) + net


@dataclass(slots=True, eq=False)
class _SourceStats:
    """A source and its expected gain, by number of requests and by coverage() of earlier sources' drafts."""

    source: DraftSource
    due: float = 0.0  # time of the next probe, on the clock of Speculation
    gain: defaultdict[tuple[int, int], ExpectedGain] = field(
        default_factory=lambda: defaultdict(ExpectedGain)
    )

    def own(self, sequence: SequenceState) -> RequestGain:
        own: RequestGain | None = sequence.source_state.get(self)
        if own is None:
            own = sequence.source_state[self] = RequestGain()
        return own


@dataclass(slots=True)
class _SourceCall:
    """One draft call of a source, for one request. cost: seconds."""

    source: str
    request: int
    gain: ExpectedGain
    own: RequestGain
    cost: float = 0.0

    def note(self, gained: float) -> None:
        self.gain.note(gained - self.cost, self.cost)
        self.own.note(gained - self.cost)


@dataclass(slots=True)
class _Step:
    """The step in progress."""

    requests: int
    counted: bool  # in the regret budget: some requests have decoding "auto", none has "medusa"
    spent: float = 0.0  # seconds in draft()
    accepted: int = 0
    expected: float = 0.0  # seconds of the decode call by the profile


@dataclass(slots=True)
class _PlainTiming:
    """When to time a call without drafts again, in steps."""

    steps: int = 0
    most: int = PLAIN_INTERVAL

    @property
    def due(self) -> bool:
        return self.steps >= self.most

    def note(self, plain: bool) -> None:
        if plain and self.due:
            self.most = min(2 * self.most, MAX_PLAIN_INTERVAL)
        self.steps = 0 if plain else self.steps + 1


@dataclass(frozen=True, slots=True)
class _Idle:
    """No source pays for these requests: draft nothing until the next probe is due."""

    requests: Sequence[SequenceState]
    until: float  # on the clock of Speculation
    step_s: float


class Speculation(DraftSource):
    """The draft source that combines all others: calls those that have paid, and keeps the nodes worth a row.

    Requests with decoding "normal" get no drafts; those with "medusa" always get the ones of `forced`.
    """

    name = "speculation"

    def __init__(
        self, profile: LatencyProfile, sources: Sequence[DraftSource], forced: ForcedSource | None = None
    ) -> None:
        """sources: the cheapest first; whether a later one is called depends on the earlier ones' drafts."""
        self.profile = profile
        self.regret = RegretBudget()
        self._sources, self._forced = [_SourceStats(source) for source in sources], forced
        self.trees = forced is not None or any(source.trees for source in sources)
        self._floors: dict[int, float] = {}
        self._steps = 0
        self._step: _Step | None = None
        self._clock = 0.0  # seconds of decode calls, by the profile
        self._idle: _Idle | None = None
        self._hidden_until = 0.0
        self._plain: defaultdict[int, _PlainTiming] = defaultdict(_PlainTiming)  # by rows without drafts

    @property
    def needs_hidden(self) -> bool:  # type: ignore[override]
        """Whether a source that needs hidden states was to be called in about the last HIDDEN_STEPS steps."""
        return self._clock < self._hidden_until

    @property
    def sources(self) -> tuple[DraftSource, ...]:
        return tuple(stats.source for stats in self._sources)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self.sources)

    # The engine calls draft(), then observe_latency() and observe() of each tree, as DraftSource says.

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        began = time.perf_counter()
        self._settle()
        if self._idle and self._clock < self._idle.until and self._idle.requests == sequences:
            self._clock += self._idle.step_s
            self.regret.step(1.0, 1.0)
            return [[] for _ in sequences]
        self._idle = None
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
        rows, width = len(sequences), 0
        if forced and self._forced:
            self._keep_hidden(rows)
            if limit > 0:
                own = [sequences[i] for i in forced]
                for i, tree in zip(forced, self._forced.force(own, self.profile, rows, limit), strict=True):
                    trees[i] = tree
                if _equal_rows(sequences):
                    width = max(map(len, trees))
                    rows *= 1 + width
                else:
                    rows += sum(map(len, trees))
                    limit -= sum(map(len, trees))
        plain_due = rows == len(sequences) and self._plain[rows].due  # with forced drafts no call is plain
        if auto and limit > 0 and not self.regret.paused and not plain_due:
            chosen = self._draft_auto([sequences[i] for i in auto], rows, limit, width)
            for i, tree in zip(auto, chosen, strict=True):
                trees[i] = tree
        spent = time.perf_counter() - began
        self._step = _Step(len(sequences), counted=bool(auto) and not forced, spent=spent)
        return trees

    def observe(self, sequence: SequenceState, tree: Tree, accepted: list[int]) -> None:  # noqa: ARG002
        if self._step:
            self._step.accepted += len(accepted)

    def observe_latency(self, rows: int, seconds: float) -> None:
        if self._step:
            self._step.expected = self.profile.observe(rows, seconds)
            self._plain[self._step.requests].note(rows == self._step.requests)
        else:  # idle
            self.profile.called(rows)

    def _settle(self) -> None:
        """Charge the last step to the regret budget: its time against plain decoding of the same tokens.

        Times come from the profile, since the noise of a single call is larger than the difference.
        """
        step, self._step = self._step, None
        if step is None:
            return
        self._clock += step.expected
        if not step.counted or not step.expected:
            return
        plain = self.profile.seconds(step.requests)
        self.regret.step(
            (step.spent + step.expected) / plain, (step.requests + step.accepted) / step.requests
        )

    # Requests with decoding "auto"

    def _draft_auto(
        self, sequences: Sequence[SequenceState], rows: int, limit: int, width: int
    ) -> list[Tree]:
        """Trees for these requests. rows: of the call without them. limit: its draft tokens. width: in
        lanes, the draft tokens of each sequence that the rows include.
        """
        began = now = time.perf_counter()
        self._steps += 1
        size = (len(sequences) - 1).bit_length()
        trees: list[Tree] = [[] for _ in sequences]
        calls: list[_SourceCall] = []
        paying = False
        least = 0.0 if width else self._min_path_probability(rows)
        for sequence in sequences:
            sequence.expected = []
        candidates = [
            stats
            for stats in self._sources
            if not (self.regret.strained and stats.source.needs_hidden)
            and any(map(stats.source.serves, sequences))
        ]
        for stats in candidates:
            source = stats.source
            # A probe calls the source for all requests, which costs hardly more than for one.
            due = self._clock >= stats.due
            chosen: list[_SourceCall] = []
            hidden = False
            for i, sequence in enumerate(sequences):
                if not source.serves(sequence):
                    continue
                gain, own = stats.gain[size, _coverage(trees[i])], stats.own(sequence)
                pays = own.pays(gain)
                paying |= pays
                if not (pays or due):
                    continue
                hidden = source.needs_hidden
                if hidden and sequence.hidden is None:  # it is called at the next step
                    paying = True
                    continue
                chosen.append(_SourceCall(source.name, i, gain, own))
            if hidden:
                self._keep_hidden(rows)
            if not chosen:
                continue
            source.min_path_probability = least
            drafted = source.draft([sequences[one.request] for one in chosen], limit)
            before, now = now, time.perf_counter()
            took = now - before
            if due:
                # At most a step's time counts: an interrupted call must not delay the next probe for long.
                share = HIDDEN_PROBE_SHARE if source.needs_hidden else PROBE_SHARE
                stats.due = self._clock + min(took, self.profile.seconds(rows)) / share
            calls += chosen
            for one, tree in zip(chosen, drafted, strict=True):
                one.cost = took / len(chosen)
                if source.leads:
                    sequences[one.request].expected = tree
                if tree:
                    before_it = trees[one.request]
                    trees[one.request] = merge([before_it, tree]) if before_it else tree
        if not any(trees):
            for one in calls:
                one.note(0.0)
            if not paying:
                until = min((stats.due for stats in candidates), default=0.0)
                self._idle = _Idle(list(sequences), until, self.profile.seconds(rows))
            return trees
        spent = time.perf_counter() - began
        if _equal_rows(sequences):
            taken, added = self._chains(trees, rows, limit, spent, width)
        else:
            taken, added = self._nodes(trees, rows, limit, spent)
        self._credit(calls, taken, added, rows, spent)
        return taken

    def _nodes(self, trees: list[Tree], rows: int, limit: int, spent: float) -> tuple[list[Tree], int]:
        """The trees of the nodes worth a row, and how many."""
        ranked = rank_nodes(trees)[:limit]
        chances = [trees[t][i].path_probability for t, i in ranked]
        nodes = choose_nodes(len(trees), chances, lambda n: self._seconds(n, rows), rows=rows, spent=spent)
        return keep_nodes(trees, ranked[:nodes]), nodes

    def _chains(
        self, trees: list[Tree], rows: int, limit: int, spent: float, least: int
    ) -> tuple[list[Tree], int]:
        """The likeliest paths, cut to the length that is worth as many rows for each sequence; these rows."""
        lanes = rows // (1 + least)
        found = [likeliest_path(tree) for tree in trees]
        chances = [[node.path_probability for node in chain] for chain in found]
        width = choose_width(
            len(trees),
            chances,
            lambda n: self._seconds(n, rows),
            rows=lanes,
            limit=limit,
            spent=spent,
            least=least,
        )
        return [chain[:width] for chain in found], lanes * (width - least)

    def _keep_hidden(self, rows: int) -> None:
        """Ask for hidden states for the next HIDDEN_STEPS steps."""
        self._hidden_until = self._clock + HIDDEN_STEPS * self.profile.seconds(rows)

    def _seconds(self, rows: int, plain_rows: int) -> float:
        """Of the next call, and of the switch back to plain calls if the number of rows differs."""
        back = self.profile.switch if rows != plain_rows else 0.0
        return self.profile.next_call(rows) + back

    def _credit(
        self,
        calls: Sequence[_SourceCall],
        taken: Sequence[Tree],
        added: int,
        rows: int,
        spent: float,
    ) -> None:
        """Credit each source with the time that its verified nodes save, less the time of the added rows."""
        nodes = sum(map(len, taken))
        expected = len(taken) + sum(node.path_probability for tree in taken for node in tree)
        took, plain = self._seconds(rows + added, rows), self._seconds(rows, rows)
        a_token = (took + spent) / expected
        a_row = (took - plain) / nodes if nodes else 0.0
        for one in calls:
            own = (node for node in taken[one.request] if node.source == one.source)
            one.note(sum(node.path_probability * a_token - a_row for node in own))

    def _min_path_probability(self, rows: int) -> float:
        if self._steps % FLOOR_STEPS == 0:
            self._floors.clear()
        if rows not in self._floors:
            self._floors[rows] = floor(rows, self.profile.seconds, FLOOR_NODES)
        return self._floors[rows]


def _equal_rows(sequences: Sequence[SequenceState]) -> bool:
    layout = sequences[0].layout if sequences else None
    return layout is not None and layout.equal_rows


def _coverage(tree: Tree) -> int:
    """0 if nothing is drafted yet, 1 for an unlikely draft, 2 if a node is at least CONFIDENT."""
    if not tree:
        return 0
    return 2 if max(node.path_probability for node in tree) >= CONFIDENT else 1
