"""Drafts and the room they take: refused ones must not cost a request the cells it was promised."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.core.draft_source import DraftSource
from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree, chain
from tests.engine.helpers.drive import completions, fresh, request, run


class Wrong(DraftSource):
    """Guesses three tokens a step that the model never chooses."""

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        return [chain([0, 0, 0][:limit], "wrong") for _ in sequences]

    def observe(self, sequence: SequenceState, tree: Tree, accepted: list[int]) -> None:
        assert not accepted


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_refused_drafts_do_not_overflow_the_cache(tiny_gguf: str, batch_invariant: bool, slots: int) -> None:
    """The request needs every cell there is."""
    engine = fresh(
        tiny_gguf,
        Wrong(),
        slots=slots,
        kv_cells=128,
        prefix_sharing=False,
        batch_invariant=batch_invariant,
        kv_type="f16",
    )
    prompt = "hello there, how are you"
    room = 128 - len(engine.encode(request("a", prompt)))
    ended = completions(run(engine, [request("a", prompt, max_tokens=room)]))
    assert ended["a"].completion_tokens == room
