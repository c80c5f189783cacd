"""Rows and cells on a real context: companions, sharing, burying, moving cells, a full cache."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGUFReader

from engine.core.kv_cache import KVCache
from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import Draft, paths
from engine.llama.context import Context, DecodeError, Logits, Rows
from engine.llama.model import Model
from tests.engine.core.test_token_tree import bush
from tests.engine.helpers.tiny import VOCAB

SEQ_IDS = 4


def open_context(
    path: str, companion_row: bool = False, kv_type: str = "f32", cells: int = 256, seq_ids: int = SEQ_IDS
) -> Context:
    return Context(
        Model(path),
        cells=cells,
        seq_ids=seq_ids,
        max_rows=32,
        threads=1,
        kv_type=kv_type,
        companion_row=companion_row,
    )


@pytest.fixture
def tiny(tiny_gguf: str) -> Context:
    return open_context(tiny_gguf)


def decode(
    context: Context,
    tokens: list[int],
    outputs: list[int],
    seq_id: int = 0,
    start: int = 0,
    hidden: bool = False,
) -> Logits:
    """Logits of the rows named in outputs, for tokens at the positions from start on."""
    n = len(tokens)
    wanted = np.zeros(n, dtype=np.int8)
    wanted[outputs] = 1
    rows = Rows(
        np.array(tokens, dtype=np.int32),
        np.arange(start, start + n, dtype=np.int32),
        np.full(n, seq_id, dtype=np.int32),
        wanted,
    )
    return context.decode(rows, hidden).logits.copy()


@pytest.mark.parametrize("companion_row", [False, True])
@pytest.mark.parametrize("output", [0, 1, 3, 4])
def test_a_lone_output_is_the_row_asked_for(tiny_gguf: str, companion_row: bool, output: int) -> None:
    tokens = [5, 70, 40, 280, 11]
    everything = decode(open_context(tiny_gguf), tokens, [0, 1, 2, 3, 4])
    lone = decode(open_context(tiny_gguf, companion_row), tokens, [output])
    assert lone.shape == (1, VOCAB)
    np.testing.assert_allclose(lone[0], everything[output], atol=1e-4)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("outputs", [[], [0]])
def test_a_lone_row_leaves_no_companion_behind(tiny_gguf: str, outputs: list[int], hidden: bool) -> None:
    context = open_context(tiny_gguf, companion_row=True)
    plain = decode(open_context(tiny_gguf), [5], outputs)
    lone = decode(context, [5], outputs, hidden=hidden)
    assert lone.shape == (len(outputs), VOCAB)
    np.testing.assert_allclose(lone, plain, atol=1e-4)
    assert context.positions(0) == (0, 0)
    assert [context.positions(i) for i in range(1, SEQ_IDS + 2)] == [(-1, -1)] * (SEQ_IDS + 1)


def test_a_lone_row_at_the_last_cell_has_room_for_its_companion(tiny_gguf: str) -> None:
    context = open_context(tiny_gguf, companion_row=True)
    cells = 256  # what the caller asked for and may use
    for start in range(0, cells - 16, 16):
        decode(context, [5] * 16, [], start=start)
    for start in range(cells - 16, cells):
        assert decode(context, [5], [0], start=start).shape == (1, VOCAB)
    assert context.positions(0) == (0, cells - 1)


def test_sharing_and_truncating(tiny: Context) -> None:
    tokens = [5, 70, 40, 280, 11]
    decode(tiny, tokens, [])
    tiny.share(0, 1, 3)
    assert (tiny.positions(0), tiny.positions(1)) == ((0, 4), (0, 2))
    tiny.truncate(0, 0)
    assert (tiny.positions(0), tiny.positions(1)) == ((-1, -1), (0, 2))
    after = decode(tiny, tokens[3:], [1], seq_id=1, start=3)
    alone = decode(tiny, tokens, [4], seq_id=2)
    np.testing.assert_allclose(after, alone, atol=1e-4)


def test_burying_hides_cells_but_keeps_them_occupied(tiny: Context) -> None:
    decode(tiny, [5, 70, 40, 280, 11], [])
    tiny.retire(0, 2)
    assert tiny.positions(0) == (0, 1)
    assert tiny.positions(SEQ_IDS + 1) == (2, 4), "held by no sequence that can be given to a request"
    tiny.free_retired()
    assert tiny.positions(SEQ_IDS + 1) == (-1, -1)
    assert tiny.positions(0) == (0, 1)


def test_a_full_cache_is_a_decode_error_and_harms_nothing(tiny: Context) -> None:
    for start in range(0, tiny.cells, 32):
        decode(tiny, [5] * 32, [], start=start)
    with pytest.raises(DecodeError, match="status 1") as failed:
        decode(tiny, [5], [0], seq_id=1)
    assert failed.value.status == 1
    tiny.truncate(0, 10)
    assert decode(tiny, [5], [0], seq_id=1).shape == (1, VOCAB)


@pytest.mark.parametrize("companion_row", [False, True])
@pytest.mark.parametrize("outputs", [[0, 1, 2], [2], [0, 2], []])
def test_hidden_states_are_what_the_logits_are_made_of(
    tiny_gguf: str, companion_row: bool, outputs: list[int]
) -> None:
    output_weight = next(t.data for t in GGUFReader(tiny_gguf).tensors if t.name == "output.weight")
    rows = Rows(
        np.array([5, 70, 40], dtype=np.int32),
        np.arange(3, dtype=np.int32),
        np.zeros(3, dtype=np.int32),
        np.isin(np.arange(3), outputs).astype(np.int8),
    )
    context = open_context(tiny_gguf, companion_row)
    logits, hidden = context.decode(rows, hidden=True)
    assert hidden is not None
    assert (len(logits), len(hidden)) == (len(outputs), len(outputs))
    np.testing.assert_allclose(hidden @ output_weight.T, logits, atol=1e-3)
    without = open_context(tiny_gguf)
    plain, none = without.decode(rows)
    assert none is None
    np.testing.assert_allclose(logits, plain, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_gives_what_each_of_its_paths_gives_alone(tiny_gguf: str, seed: int) -> None:
    """The mask oracle: two requests, each with a tree, in one call, beside their root-to-leaf paths."""
    prompts = [[5, 70, 40, 280], [9, 11, 44]]
    trees = [bush(seed, 6), bush(seed + 100, 5)]
    context = open_context(tiny_gguf, seq_ids=16)
    cache = KVCache(context, 256)
    leaf_ids = list(range(2, 16))
    rows = RowsBuilder()
    for seq_id, (prompt, tree) in enumerate(zip(prompts, trees, strict=True)):
        decode(context, prompt[:-1], [], seq_id)
        cache.append(seq_id, len(prompt) - 1)
        ways = paths(tree)
        draft = Draft(tree, ways, [leaf_ids.pop() for _ in ways[1:]])
        cache.branch(seq_id, draft.leaf_ids)
        rows.add(seq_id, prompt[-1:], len(prompt) - 1, draft)
    logits, hidden = context.decode(rows.build(), hidden=True)
    assert hidden is not None
    first = 0
    for prompt, tree in zip(prompts, trees, strict=True):
        for way in paths(tree):
            path = [prompt[-1], *(tree[node].token for node in way)]
            alone = open_context(tiny_gguf)
            wanted = decode(alone, prompt[:-1] + path, [*range(len(prompt) - 1, len(prompt) + len(way))])
            in_tree = [first, *(first + 1 + node for node in way)]
            np.testing.assert_allclose(logits[in_tree], wanted, atol=1e-4)
        first += 1 + len(tree)


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize("shared", [0, 2])
def test_saved_cells_go_on_elsewhere(tiny_gguf: str, kv_type: str, shared: int) -> None:
    """Between other sequences' cells, after cells that are there already, and to the bit."""
    tokens = [5, 70, 40, 280, 11]
    source = open_context(tiny_gguf, kv_type=kv_type, cells=64)
    decode(source, tokens[:4], [])
    target = open_context(tiny_gguf, kv_type=kv_type)
    decode(target, [9, 9], [], seq_id=0)
    decode(target, tokens[:shared] or [8], [], seq_id=1)
    target.truncate(1, shared)
    decode(target, [9, 9], [], seq_id=0, start=2)
    target.restore(source.save(0, shared), 1)
    assert (source.positions(0), target.positions(0), target.positions(1)) == ((0, 3), (0, 3), (0, 3))
    assert [target.positions(i) for i in range(2, SEQ_IDS + 2)] == [(-1, -1)] * SEQ_IDS
    there = decode(target, tokens[4:], [0], seq_id=1, start=4)
    here = decode(source, tokens[4:], [0], start=4)
    np.testing.assert_allclose(there, here, atol=1e-4)


def test_saved_cells_that_do_not_fit_change_nothing(tiny_gguf: str) -> None:
    source, target = open_context(tiny_gguf), open_context(tiny_gguf)
    decode(source, [5] * 32, [])
    for start in range(0, target.cells - 32, 32):
        decode(target, [5] * 32, [], start=start)
    decode(target, [5], [], start=target.cells - 32)
    with pytest.raises(DecodeError):
        target.restore(source.save(0), 1)
    assert target.positions(0) == (0, target.cells - 32)
    assert [target.positions(i) for i in range(1, SEQ_IDS + 2)] == [(-1, -1)] * (SEQ_IDS + 1)
