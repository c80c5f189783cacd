"""What is verified in lanes, where all sequences get equally many rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.base.request import Decoding
from engine.core.draft_source import DraftSource
from engine.core.layouts import LaneLayout, Layout
from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT, Node, Tree, chain
from engine.speculative.controller import Speculation
from engine.speculative.latency_model import LatencyProfile
from tests.engine.helpers.drive import fresh
from tests.engine.helpers.policy import sequences
from tests.support.measuring.profiles import FixedProfile, flat


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


class Forced(Prepared):
    def force(
        self, sequences: Sequence[SequenceState], profile: LatencyProfile, rows: int, limit: int
    ) -> list[Tree]:
        return self.draft(sequences, limit)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("forced", "limit", "taken"),
    [
        (1, 64, 1),  # a call of four rows takes place anyway; two more are too dear
        (2, 64, 2),
        (3, 64, 3),
        (3, 6, 3),
        (0, 64, 0),
    ],
)
def test_in_lanes_rows_that_a_forced_draft_takes_cost_the_others_nothing(
    lanes: LaneLayout, forced: int, limit: int, taken: int
) -> None:
    tree = prepared(0.4, 0.3, 0.2)
    steep = FixedProfile({1: 1.0, 64: 64.0})
    running = sequences(2)
    for s, decoding in zip(running, (Decoding.MEDUSA, Decoding.AUTO), strict=True):
        s.request = replace(s.request, decoding=decoding)
        s.layout = lanes
    speculation = Speculation(steep, [Prepared([], tree)], Forced(prepared(0.5, 0.5, 0.5)[:forced]))
    assert [len(tree) for tree in speculation.draft(running, limit)] == [forced, taken]
