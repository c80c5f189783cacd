"""Speculation: which sources are called, what is verified, and that the output never changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import Decoding, EngineConfig, Request, RequestRefused
from engine.core.draft_source import DraftSource
from engine.core.engine import Engine
from engine.core.layouts import LaneLayout, Layout
from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, Node, Tree, chain
from engine.llama.context import Hidden
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
from engine.speculative.row_timer import largest_timed
from engine.speculative.setup import UNKNOWN, speculate
from engine.speculative.verification_budget import bucket
from tests.engine.helpers.drive import alone, completions, fresh, opened, request, run
from tests.support.measuring.profiles import FixedProfile, flat

STEEP = {n: 0.010 * n for n in range(1, 65)}  # a row costs as much as a step


class Known(DraftSource):
    """Drafts what is known to come, or what is known not to; says what it was asked."""

    def __init__(
        self,
        name: str,
        outputs: dict[str, tuple[int, ...]],
        *,
        right: bool,
        needs_hidden: bool,
        path_probability: float = 0.9,
    ) -> None:
        self.name, self.needs_hidden = name, needs_hidden
        self._path_probability = path_probability
        self.asked: list[list[str]] = []
        self._outputs, self._right = outputs, right

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        self.asked.append([s.request.id for s in sequences])
        for s in sequences:
            assert not self.needs_hidden or s.hidden is not None
        return [self._one(s)[:limit] for s in sequences]

    def _one(self, s: SequenceState) -> Tree:
        done = len(s.output)
        tokens = self._outputs[s.request.id][done : done + 4]
        return chain((t if self._right else (t + 1) % 300 for t in tokens), self.name, self._path_probability)

    def force(self, sequences: Sequence[SequenceState], profile: LatencyProfile, limit: int) -> list[Tree]:
        return [self._one(s) if s.hidden is not None else [] for s in sequences]


def requests(decoding: Decoding = Decoding.AUTO, **sampling: object) -> list[Request]:
    texts = ["one two three one two", "Tell me a story", "abcabcabcabc", "the end of the end of the"]
    made = [request(str(i), text, max_tokens=60, **sampling) for i, text in enumerate(texts)]
    return [Request(id=r.id, prompt=r.prompt, raw=True, sampling=r.sampling, decoding=decoding) for r in made]


def speculating(
    model: str, profile: LatencyProfile, *sources: Known | LookupSource, forced: Known | None = None
) -> tuple[Engine, Speculation]:
    engine = fresh(model)
    speculation = Speculation(profile, sources, forced)
    engine.set_draft_source(speculation, speculation.names)
    return engine, speculation


@pytest.fixture
def reference(tiny_gguf: str) -> dict[str, tuple[int, ...]]:
    return {name: c.tokens for name, c in alone(tiny_gguf, requests()).items()}


@pytest.mark.usefixtures("no_time_passes")
@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3, "top_p": 0.9}, {"logprobs": 2}])
def test_output_is_the_same_with_every_source_at_once(
    tiny_gguf: str, sampling: dict[str, object], trees: bool
) -> None:
    """In a tree all that is drafted has a place, in a lane the likeliest alone."""
    expected = alone(tiny_gguf, requests(**sampling))
    known = {name: c.tokens for name, c in expected.items()}
    sure = 0.9 if trees else 0.95
    right = Known("right", known, right=True, needs_hidden=True, path_probability=sure)
    right.trees = trees
    wrong = Known("wrong", known, right=False, needs_hidden=False)
    engine, _ = speculating(tiny_gguf, flat(), LookupSource(), wrong, right)
    ended = completions(run(engine, requests(**sampling)))
    for name, c in expected.items():
        assert (ended[name].tokens, ended[name].finish_reason) == (c.tokens, c.finish_reason)
        assert ended[name].text == c.text
        for one, other in zip(ended[name].logprobs or (), c.logprobs or (), strict=True):
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    assert all(c.drafted["right"].accepted for c in ended.values())
    assert all(c.tokens_per_step > 1.5 for c in ended.values())
    assert not any(c.drafted.get("wrong") and c.drafted["wrong"].accepted for c in ended.values())


@pytest.mark.usefixtures("no_time_passes")
def test_on_a_steep_curve_nothing_is_verified(tiny_gguf: str, reference: dict[str, tuple[int, ...]]) -> None:
    """Unless it is sure: rows that cost as much as steps pay only when they are always right."""
    source = Known("right", reference, right=True, needs_hidden=False)
    engine, _ = speculating(tiny_gguf, FixedProfile(STEEP), source)
    ended = completions(run(engine, requests()))
    assert {name: c.tokens for name, c in ended.items()} == reference
    assert all(c.steps == c.completion_tokens and not c.drafted for c in ended.values())


def test_normal_requests_are_left_alone_beside_others(
    tiny_gguf: str, reference: dict[str, tuple[int, ...]]
) -> None:
    source = Known("right", reference, right=True, needs_hidden=False)
    engine, _ = speculating(tiny_gguf, flat(), source)
    mixed = [*requests(Decoding.NORMAL)[:2], *requests()[2:]]
    ended = completions(run(engine, mixed))
    assert {name: c.tokens for name, c in ended.items()} == reference
    assert [c.steps == c.completion_tokens for _, c in sorted(ended.items())] == [True, True, False, False]
    assert {name for asked in source.asked for name in asked} == {"2", "3"}


def test_medusa_drafts_every_step_however_little_it_pays(
    tiny_gguf: str, reference: dict[str, tuple[int, ...]]
) -> None:
    heads = Known("medusa", reference, right=False, needs_hidden=True)
    engine, speculation = speculating(tiny_gguf, LatencyProfile(STEEP), heads, forced=heads)
    ended = completions(run(engine, requests(Decoding.MEDUSA)))
    assert {name: c.tokens for name, c in ended.items()} == reference
    for c in ended.values():
        assert c.steps == c.completion_tokens
        assert c.drafted["medusa"].verified >= c.steps - 5
    assert not speculation.regret.paused, "forced drafts do not count against the budget"


def test_before_t_of_n_is_known_nobody_is_drafted_for_unasked(
    tiny_gguf: str, reference: dict[str, tuple[int, ...]]
) -> None:
    heads = Known("medusa", reference, right=True, needs_hidden=True)
    engine, speculation = speculating(tiny_gguf, LatencyProfile(UNKNOWN), forced=heads)
    engine.set_draft_source(speculation, ("medusa",))
    mixed = [*requests(Decoding.MEDUSA)[:2], *requests()[2:]]
    ended = completions(run(engine, mixed))
    assert {name: c.tokens for name, c in ended.items()} == reference
    assert [bool(c.drafted) for _, c in sorted(ended.items())] == [True, True, False, False]


class Watching(Known):
    """Notes the hidden state of each length it is asked at."""

    def __init__(self, outputs: dict[str, tuple[int, ...]], *, drafts: bool) -> None:
        super().__init__("watching", outputs, right=True, needs_hidden=True)
        self.states: dict[tuple[str, int], Hidden] = {}
        self._drafts = drafts

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        for s in sequences:
            if s.hidden is not None:
                self.states[s.request.id, s.length] = s.hidden
        return [self._one(s)[:limit] if self._drafts and s.hidden is not None else [] for s in sequences]


def test_the_hidden_state_is_that_of_the_last_accepted_token(
    tiny_gguf: str, reference: dict[str, tuple[int, ...]]
) -> None:
    plain, drafting = (Watching(reference, drafts=on) for on in (False, True))
    for source in (plain, drafting):
        engine = fresh(tiny_gguf, source)
        completions(run(engine, requests()))
    assert len(drafting.states) < len(plain.states) / 3, "most tokens came in runs of accepted ones"
    for place, state in drafting.states.items():
        np.testing.assert_allclose(state, plain.states[place], atol=1e-3)


def test_medusa_without_heads_is_refused(tiny_gguf: str) -> None:
    engine, _ = speculating(tiny_gguf, flat(), LookupSource())
    with pytest.raises(RequestRefused, match="needs Medusa heads") as refused:
        engine.encode(requests(Decoding.MEDUSA)[0])
    assert refused.value.code == "no_heads"
    assert refused.value.param == "decoding"


def sequences(count: int) -> list[SequenceState]:
    import numpy as np

    made = [
        SequenceState(request(str(i), "-", max_tokens=100_000), np.array([1, 2, 3 + i], dtype=np.int32), 0.0)
        for i in range(count)
    ]
    for s in made:
        s.hidden = np.zeros(4, dtype=np.float32)
    return made


class Clock:
    """Stands still but for what drafts are said to cost, so that no other process can make one dear."""

    now = 0.0

    @classmethod
    def perf_counter(cls) -> float:
        return cls.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.speculative.controller.time", Clock)


class Costly(DraftSource):
    """Heads that take time and are never sure enough."""

    name, needs_hidden = "costly", True

    def __init__(self, path_probability: float, cost_s: float = 0.0) -> None:
        self.path_probability, self.cost_s = path_probability, cost_s
        self.calls = 0

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        self.calls += 1
        Clock.now += self.cost_s
        return [chain([5], self.name, self.path_probability) for _ in sequences]


def steps(speculation: Speculation, running: list[SequenceState], count: int, *, right: bool = False) -> int:
    """Steps as the engine makes them, in a clock that goes by the profile; how many gave hidden states."""
    gave_hidden = 0
    for _ in range(count):
        trees = speculation.draft(running, 64)
        gave_hidden += speculation.needs_hidden
        for s in running:
            s.hidden = np.zeros(4, dtype=np.float32) if speculation.needs_hidden else None
        rows = len(running) + sum(map(len, trees))
        speculation.observe_latency(rows, speculation.profile.seconds(rows))
        for s, tree in zip(running, trees, strict=True):
            if tree:
                speculation.observe(s, tree, [0] if right else [])
    return gave_hidden


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
    speculation.profile.last_rows = 1
    assert len(speculation.draft(sequences(1), 64)[0]) == 0, "1.6 tokens in 1.7 s, against 1 in 1"
    speculation.profile.last_rows = 2
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


# In lanes, where all sequences get equally many rows


class Prepared(DraftSource):
    """Drafts for each request the tree that was prepared for it."""

    name = "prepared"

    def __init__(self, *trees: Tree) -> None:
        self._prepared = trees

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        return [self._prepared[int(s.request.id)][:limit] for s in sequences]


def prepared(*path_probabilities: float) -> Tree:
    """A chain of nodes with these path probabilities."""
    tokens = chain(range(10, 10 + len(path_probabilities)), "prepared")
    return [replace(node, path_probability=p) for node, p in zip(tokens, path_probabilities, strict=True)]


def drafted(profile: LatencyProfile, trees: Sequence[Tree], layout: Layout | None) -> list[Tree]:
    running = sequences(len(trees))
    for s in running:
        s.layout = layout
    return Speculation(profile, [Prepared(*trees)]).draft(running, 64)


@pytest.fixture
def lanes(tiny_gguf: str) -> LaneLayout:
    layout = fresh(tiny_gguf).layouts.lanes
    assert layout
    return layout


@pytest.mark.usefixtures("clock")
def test_in_lanes_a_width_is_chosen_for_all(lanes: LaneLayout) -> None:
    trees = [prepared(0.9, 0.8, 0.7), prepared(0.9, 0.1, 0.01), prepared(0.9), []]
    linear = FixedProfile({1: 0.005, 64: 0.068})  # 4 ms and one a row
    assert [len(tree) for tree in drafted(linear, trees, lanes)] == [1, 1, 1, 0]
    assert [len(tree) for tree in drafted(flat(), trees, lanes)] == [3, 3, 1, 0]


@pytest.mark.usefixtures("clock")
def test_in_lanes_nothing_is_drafted_where_the_rows_of_the_others_cost_more(lanes: LaneLayout) -> None:
    trees = [prepared(0.9), [], [], []]
    steps = FixedProfile({4: 0.010, 5: 0.0105, 8: 0.020})
    assert [len(tree) for tree in drafted(steps, trees, None)] == [1, 0, 0, 0]
    assert [len(tree) for tree in drafted(steps, trees, lanes)] == [0, 0, 0, 0]


@pytest.mark.usefixtures("clock")
def test_in_lanes_a_tree_is_cut_to_its_likeliest_path(lanes: LaneLayout) -> None:
    tree = [
        Node(5, ROOT, 0.4, "prepared", 1),
        Node(6, ROOT, 0.5, "prepared", 1),
        Node(7, 0, 0.3, "prepared", 2),
        Node(8, 1, 0.45, "prepared", 2),
    ]
    [[*kept]] = drafted(flat(), [tree], lanes)
    assert [(node.token, node.parent) for node in kept] == [(6, ROOT), (8, 0)]


@pytest.mark.usefixtures("clock")
def test_in_lanes_drafts_pay_for_the_rows_that_fill_up_the_others(lanes: LaneLayout) -> None:
    """Of two requests; a call of two rows takes 10 s, one of four 12 s."""

    def credit(*trees: Tree) -> list[float]:
        source = Prepared(*trees)
        speculation = Speculation(FixedProfile({2: 10.0, 4: 12.0}), [source])
        running = sequences(2)
        for s in running:
            s.layout = lanes
        taken = speculation.draft(running, 64)
        assert [len(tree) for tree in taken] == [len(tree) for tree in trees]
        return [speculation._sources[0].own(s)._sum for s in running]

    a_token = 12 / (2 + 0.9 + 0.5)
    assert credit(prepared(0.9), prepared(0.5)) == pytest.approx([0.9 * a_token - 1, 0.5 * a_token - 1])
    assert credit(prepared(0.9), []) == pytest.approx([0.9 * 12 / (2 + 0.9) - 2, 0.0])


def test_a_cache_smaller_than_the_calls_is_timed_as_far_as_it_goes(
    tiny_gguf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = EngineConfig(model=tiny_gguf, slots=2, kv_cells=64, kv_type="f32")
    engine = opened(config)
    assert largest_timed(config) == 32
    speculate(engine, config)
    ended = completions(run(engine, [request("r", "abcabcabcabc", max_tokens=40)]))
    assert ended["r"].completion_tokens == 40


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
