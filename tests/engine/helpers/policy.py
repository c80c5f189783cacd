"""A policy of drafting without a model: sequences, sources that cost time, and a clock of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.core.draft_source import DraftSource
from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree, chain
from engine.speculative.controller import Speculation
from tests.engine.helpers.drive import request

STEEP = {n: 0.010 * n for n in range(1, 65)}  # a row costs as much as a step


def sequences(count: int) -> list[SequenceState]:
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
