"""Which sources are asked, how often, and what of their drafts is verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from engine.core.draft_source import DraftSource
from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree, chain
from engine.speculative.controller import (
    HIDDEN_PROBE_SHARE,
    HIDDEN_STEPS,
    PLAIN_INTERVAL,
    PROBE_SHARE,
    Speculation,
)
from engine.speculative.latency_model import LatencyProfile
from engine.speculative.prompt_lookup import LookupSource
from engine.speculative.regret_budget import ALLOWANCE, GRACE, LOSS_BOUND
from engine.speculative.verification_budget import bucket
from tests.engine.helpers.policy import STEEP, Clock, Costly, sequences, steps
from tests.support.measuring.profiles import FixedProfile, flat


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("hidden", "share"), [(True, HIDDEN_PROBE_SHARE), (False, PROBE_SHARE)])
def test_a_source_that_does_not_pay_is_asked_now_and_then(hidden: bool, share: float) -> None:
    source = Costly(0.05, cost_s=0.0005)
    source.needs_hidden = hidden
    speculation = Speculation(LatencyProfile(STEEP), [source])
    running = sequences(1)
    steps(speculation, running, 200)
    before = source.calls
    steps(speculation, running, 2000)
    assert 2 <= source.calls - before <= share * 2000 * 0.010 / source.cost_s + 1


@pytest.mark.usefixtures("clock")
def test_hidden_states_are_given_while_somebody_looks_at_them() -> None:
    source = Costly(0.05, cost_s=0.0005)
    speculation = Speculation(FixedProfile(STEEP), [source])
    running = sequences(1)
    steps(speculation, running, 200)
    calls = source.calls
    given = steps(speculation, running, 1000)
    assert source.calls > calls, "they are there when it is asked again"
    assert given <= (source.calls - calls + 1) * (HIDDEN_STEPS + 1)
    paying = Speculation(FixedProfile({1: 0.010, 2: 0.013, 4: 0.02}), [Costly(0.9)])
    assert steps(paying, sequences(1), 50, right=True) == 50


@pytest.mark.usefixtures("clock")
def test_a_source_that_was_slow_once_is_asked_again_soon() -> None:
    source = Costly(0.05, cost_s=0.2)
    source.needs_hidden = False
    speculation = Speculation(FixedProfile({n: 0.1 * n for n in range(1, 65)}), [source])
    running = sequences(1)
    steps(speculation, running, 12)
    source.cost_s, calls = 0.0, source.calls
    assert calls < 12
    steps(speculation, running, round(1.2 / PROBE_SHARE))
    assert source.calls > calls


@pytest.mark.usefixtures("clock")
def test_in_debt_it_rests_though_heads_wait_to_be_asked() -> None:
    source, cheap = Costly(0.05, cost_s=0.0005), Costly(0.05, cost_s=0.0001)
    cheap.needs_hidden = False
    speculation = Speculation(FixedProfile(STEEP), [cheap, source])
    running = sequences(1)
    steps(speculation, running, 400)
    speculation.regret._balance = -3.0
    calls, asked = source.calls, cheap.calls
    steps(speculation, running, 200)
    assert speculation.regret.strained
    assert source.calls == calls
    assert cheap.calls - asked <= PROBE_SHARE * 200 * 0.010 / cheap.cost_s + 2


@pytest.mark.usefixtures("clock")
def test_beside_a_request_that_pays_others_are_asked_now_and_then() -> None:
    class Picky(Costly):
        """Right for the first alone."""

        def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
            asked.update(s.request.id for s in sequences)
            Clock.now += self.cost_s
            return [chain([5], self.name, 0.95 if s.request.id == "0" else 0.01) for s in sequences]

    asked: Counter[str] = Counter()
    source = Picky(0.0, cost_s=0.0005)
    source.needs_hidden = False
    speculation = Speculation(FixedProfile({1: 0.010, 2: 0.0101, 3: 0.0102, 4: 0.02}), [source])
    running = sequences(2)
    steps(speculation, running, 300, right=True)
    assert asked["0"] > 250
    before = asked["1"]
    steps(speculation, running, 300, right=True)
    assert 3 <= asked["1"] - before < 150


@pytest.mark.usefixtures("clock")
def test_other_requests_end_the_rest() -> None:
    source = Costly(0.05, cost_s=0.0005)
    speculation = Speculation(FixedProfile(STEEP), [source])
    running = sequences(1)
    steps(speculation, running, 200)
    calls = source.calls
    for _ in range(2000):
        steps(speculation, running, 1)
        if source.calls > calls:
            break
    calls = source.calls
    steps(speculation, running, 3)
    assert source.calls == calls, "it has just been asked in vain"
    steps(speculation, sequences(3), 1)
    assert source.calls > calls, "of three at once nothing is known"


@pytest.mark.usefixtures("clock")
def test_a_source_that_pays_is_asked_always() -> None:
    source = Costly(0.9)
    speculation = Speculation(LatencyProfile({1: 0.010, 2: 0.013, 4: 0.02}), [source])
    plain = sum(
        PLAIN_INTERVAL * 2**i + i < 300 for i in range(5)
    )  # steps without drafts, farther and farther apart
    steps(speculation, sequences(1), 300, right=True)
    assert 300 - source.calls in (plain, plain + 1)


@pytest.mark.usefixtures("clock")
def test_plain_calls_are_timed_too_and_a_wrong_profile_is_found_out() -> None:
    """A call of one row is said to take three times what it does: with it, drafts that lose seem to gain."""
    source = Costly(0.6)
    source.needs_hidden = False
    speculation = Speculation(LatencyProfile({1: 0.030, 2: 0.031, 4: 0.060}), [source])
    truth, running, drafted = {1: 0.010, 2: 0.020}, sequences(1), []
    for i in range(2000):
        [tree] = speculation.draft(running, 1)
        drafted.append(len(tree))
        speculation.observe_latency(1 + len(tree), truth[1 + len(tree)])
        if tree:
            speculation.observe(running[0], tree, [0] if i % 5 < 3 else [])
    assert sum(drafted[:20]) > 10, "it believes what it was told at first"
    assert sum(drafted[-500:]) <= 10, "what is left are probes"


@pytest.mark.usefixtures("clock")
def test_a_source_that_lies_is_paused_by_what_it_costs() -> None:
    """It says 0.9 and is never right."""
    source = Costly(0.9)
    speculation = Speculation(LatencyProfile({1: 0.010, 2: 0.013, 4: 0.02}), [source])
    running, verified = sequences(1), 0
    for _ in range(2000):
        [tree] = speculation.draft(running, 64)
        verified += len(tree)
        speculation.observe_latency(1 + len(tree), 0.013 if tree else 0.010)
        if tree:
            speculation.observe(running[0], tree, [])
    lost = verified * 0.003
    assert lost < (ALLOWANCE + GRACE + 1) * 0.010 + LOSS_BOUND * (2000 * 0.010 + lost)
    assert verified > 10


@pytest.mark.usefixtures("clock")
def test_without_a_hidden_state_heads_are_not_asked() -> None:
    source = Costly(0.9)
    speculation = Speculation(flat(), [source])
    running = sequences(2)
    running[0].hidden = None
    trees = speculation.draft(running, 64)
    assert [len(tree) for tree in trees] == [0, 1]
    assert speculation.needs_hidden


@pytest.mark.usefixtures("clock")
def test_a_change_of_shape_is_paid_for_twice() -> None:
    """There and back, unless the call before had it already. Calls so long that drafting takes no time."""
    speculation = Speculation(FixedProfile({1: 1.0, 2: 1.3, 64: 30.0}, switch_s=0.2), [Costly(0.6)])
    speculation.profile.called(1)
    assert len(speculation.draft(sequences(1), 64)[0]) == 0, "1.6 tokens in 1.7 s, against 1 in 1"
    speculation.profile.called(2)
    assert len(speculation.draft(sequences(1), 64)[0]) == 1, "in 1.5 s, against 1.2"


@pytest.mark.usefixtures("clock")
def test_never_more_nodes_than_there_is_room_for() -> None:
    speculation = Speculation(flat(), [LookupSource()])
    running = sequences(3)
    for s in running:
        s.tokens[3:40] = [1, 2, 3] * 12 + [1]
        s.length = 40
    for limit in (0, 1, 5, 64):
        trees = speculation.draft(running, limit)
        assert sum(map(len, trees)) <= limit
    assert bucket(3 + sum(map(len, trees))) == 3 + sum(map(len, trees)) == 64


class Leading(DraftSource):
    """Drafts a chain for some requests, from which the sources after it go on."""

    name, leads = "leading", True

    def __init__(self, served: set[str]) -> None:
        self._served = served
        self.calls = 0

    def serves(self, sequence: SequenceState) -> bool:
        return sequence.request.id in self._served

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        assert all(map(self.serves, sequences))
        self.calls += 1
        return [chain([5, 6], self.name, 0.97)[:limit] for _ in sequences]


class Noting(DraftSource):
    """Drafts nothing, and notes what it was told to expect."""

    name = "noting"

    def __init__(self) -> None:
        self.expected: list[list[int]] = []

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        self.expected += ([node.token for node in s.expected] for s in sequences)
        return [[] for _ in sequences]


@pytest.mark.usefixtures("clock")
def test_what_a_leading_source_drafts_is_known_to_those_after_it_in_the_same_step() -> None:
    leading, following = Leading({"0"}), Noting()
    speculation = Speculation(flat(), [leading, following])
    running = sequences(2)
    speculation.draft(running, 32)
    assert following.expected == [[5, 6], []]
    following.expected.clear()
    leading._served.clear()
    speculation.draft(running, 32)
    assert following.expected == [[], []]


@pytest.mark.usefixtures("clock")
def test_a_source_that_serves_none_does_not_keep_others_from_their_rest() -> None:
    leading, source = Leading(set()), Costly(0.05, cost_s=0.0005)
    source.needs_hidden = False
    speculation = Speculation(FixedProfile(STEEP), [leading, source])
    steps(speculation, sequences(1), 200)
    calls = source.calls
    steps(speculation, sequences(1), 200)
    assert leading.calls == 0
    assert source.calls - calls < 50
