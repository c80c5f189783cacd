"""Rows and cells on a real context: companions, sharing, copying, saving, a full cache."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from gguf import GGUFReader

from engine.core.layouts import SharedLayout
from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import Draft, paths
from engine.llama.context import Context, DecodeError, Logits, Rows
from engine.llama.model import Model
from engine.llama.saved_cells import HEADER_BYTES, SavedCells
from tests.engine.core.test_token_tree import bush
from tests.engine.helpers.tiny import VOCAB, write_tiny_gguf

SEQ_IDS = 4
CELLS = 255  # with the one for the companion row, exactly what llama.cpp rounds up to
TOKENS = [5, 70, 40, 280, 11]
EITHER = pytest.mark.parametrize("streams", [False, True])


def open_context(
    path: str,
    companion_row: bool = False,
    kv_type: str = "f32",
    seq_ids: int = SEQ_IDS,
    streams: bool = False,
) -> Context:
    return Context(
        Model(path),
        cells=CELLS,
        seq_ids=seq_ids,
        max_rows=32,
        threads=1,
        kv_type=kv_type,
        companion_row=companion_row,
        streams=streams,
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


@EITHER
@pytest.mark.parametrize("companion_row", [False, True])
@pytest.mark.parametrize("output", [0, 1, 3, 4])
def test_a_lone_output_is_the_row_asked_for(
    tiny_gguf: str, companion_row: bool, output: int, streams: bool
) -> None:
    everything = decode(open_context(tiny_gguf), TOKENS, [0, 1, 2, 3, 4])
    lone = decode(open_context(tiny_gguf, companion_row, streams=streams), TOKENS, [output])
    assert lone.shape == (1, VOCAB)
    np.testing.assert_allclose(lone[0], everything[output], atol=1e-4)


@EITHER
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("outputs", [[], [0]])
def test_a_lone_row_leaves_no_companion_behind(
    tiny_gguf: str, outputs: list[int], hidden: bool, streams: bool
) -> None:
    context = open_context(tiny_gguf, companion_row=True, streams=streams)
    plain = decode(open_context(tiny_gguf), [5], outputs)
    lone = decode(context, [5], outputs, seq_id=1, hidden=hidden)
    assert lone.shape == (len(outputs), VOCAB)
    np.testing.assert_allclose(lone, plain, atol=1e-4)
    assert [context.positions(i) for i in range(SEQ_IDS)] == [(-1, -1), (0, 0), (-1, -1), (-1, -1)]
    assert streams or context.positions(SEQ_IDS) == (-1, -1), "that of the companion"


@EITHER
def test_a_lone_row_has_the_logits_that_it_has_beside_others(tiny_gguf: str, streams: bool) -> None:
    """To the last bit, which is what companions are for."""
    together = open_context(tiny_gguf, True, "f16", streams=streams)
    for seq_id in range(2):
        decode(together, TOKENS[:4], [], seq_id=seq_id)
    rows = Rows(
        np.array([TOKENS[4], 9], dtype=np.int32),
        np.array([4, 4], dtype=np.int32),
        np.array([0, 1], dtype=np.int32),
        np.ones(2, dtype=np.int8),
    )
    alone = open_context(tiny_gguf, True, "f16", streams=streams)
    decode(alone, TOKENS[:4], [])
    np.testing.assert_array_equal(
        together.decode(rows).logits[:1], decode(alone, TOKENS[4:], [0], start=4), strict=True
    )


@EITHER
def test_a_lone_row_at_the_last_cell_has_room_for_its_companion(tiny_gguf: str, streams: bool) -> None:
    context = open_context(tiny_gguf, companion_row=True, streams=streams)
    for start in range(0, CELLS - 15, 16):
        decode(context, [5] * min(16, CELLS - 15 - start), [], start=start)
    for start in range(CELLS - 15, CELLS):
        assert decode(context, [5], [0], start=start).shape == (1, VOCAB)
    assert context.positions(0) == (0, CELLS - 1)


@pytest.mark.parametrize(("outputs", "waits"), [([], 1), ([4], 0)])
def test_a_call_without_outputs_is_waited_for(
    tiny: Context, monkeypatch: pytest.MonkeyPatch, outputs: list[int], waits: int
) -> None:
    """On a device it would go on after decode(), and its time count as the next call's."""
    waited: list[object] = []
    monkeypatch.setattr(llama_cpp, "llama_synchronize", waited.append)
    decode(tiny, TOKENS, outputs)
    assert len(waited) == waits


def test_sharing_and_truncating(tiny: Context) -> None:
    decode(tiny, TOKENS, [])
    tiny.share(0, 1, 3)
    assert (tiny.positions(0), tiny.positions(1)) == ((0, 4), (0, 2))
    tiny.truncate(0, 0)
    assert (tiny.positions(0), tiny.positions(1)) == ((-1, -1), (0, 2))
    after = decode(tiny, TOKENS[3:], [1], seq_id=1, start=3)
    alone = decode(tiny, TOKENS, [4], seq_id=2)
    np.testing.assert_allclose(after, alone, atol=1e-4)


def test_a_range_of_positions_can_be_shared(tiny: Context) -> None:
    decode(tiny, TOKENS, [])
    tiny.share(0, 1, 2)
    tiny.share_range(0, 1, 2, 4)
    assert tiny.positions(1) == (0, 3)
    tiny.truncate(0, 0)
    after = decode(tiny, TOKENS[4:], [0], seq_id=1, start=4)
    alone = decode(tiny, TOKENS, [4], seq_id=2)
    np.testing.assert_allclose(after, alone, atol=1e-4)


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_a_copied_stream_goes_on_as_the_one_it_comes_from(tiny_gguf: str, kv_type: str) -> None:
    """In place of what was there, and without a trace in the source."""
    context = open_context(tiny_gguf, kv_type=kv_type, streams=True)
    decode(context, TOKENS, [], seq_id=2)
    decode(context, [9] * 20, [], seq_id=1)
    context.copy_stream(2, 1)
    assert [context.positions(i) for i in range(SEQ_IDS)] == [(-1, -1), (0, 4), (0, 4), (-1, -1)]
    context.truncate(1, 3)
    assert context.positions(2) == (0, 4)
    copy = decode(context, TOKENS[3:], [0, 1], seq_id=1, start=3)
    context.truncate(2, 3)
    np.testing.assert_array_equal(copy, decode(context, TOKENS[3:], [0, 1], seq_id=2, start=3))


@EITHER
def test_a_full_cache_is_a_decode_error_and_harms_nothing(tiny_gguf: str, streams: bool) -> None:
    """Where sequences share it, it is full for all of them."""
    context = open_context(tiny_gguf, streams=streams)
    for start in range(0, context.cells, 32):
        decode(context, [5] * 32, [], start=start)
    with pytest.raises(DecodeError, match="status 1") as failed:
        decode(context, [5], [0], seq_id=0 if streams else 1, start=context.cells if streams else 0)
    assert failed.value.status == 1
    if streams:
        assert decode(context, [5], [0], seq_id=1).shape == (1, VOCAB)
    context.truncate(0, 10)
    assert decode(context, [5], [0], seq_id=0, start=10).shape == (1, VOCAB)


@EITHER
@pytest.mark.parametrize("companion_row", [False, True])
@pytest.mark.parametrize("outputs", [[0, 1, 2], [2], [0, 2], []])
def test_hidden_states_are_what_the_logits_are_made_of(
    tiny_gguf: str, companion_row: bool, outputs: list[int], streams: bool
) -> None:
    output_weight = next(t.data for t in GGUFReader(tiny_gguf).tensors if t.name == "output.weight")
    rows = Rows(
        np.array([5, 70, 40], dtype=np.int32),
        np.arange(3, dtype=np.int32),
        np.zeros(3, dtype=np.int32),
        np.isin(np.arange(3), outputs).astype(np.int8),
    )
    context = open_context(tiny_gguf, companion_row, streams=streams)
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
    layout = SharedLayout(context, seq_ids=2, leaf_ids=range(2, 16), capacity=CELLS, alone=False)
    leaf_ids = list(layout.leaf_ids)
    rows = RowsBuilder()
    for seq_id, (prompt, tree) in enumerate(zip(prompts, trees, strict=True)):
        assert layout.take(100) == seq_id
        decode(context, prompt[:-1], [], seq_id)
        layout.append(seq_id, len(prompt) - 1)
        ways = paths(tree)
        draft = Draft(tree, ways, [leaf_ids.pop() for _ in ways[1:]])
        layout.branch(seq_id, draft.leaf_ids)
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
@pytest.mark.parametrize("source_streams", [False, True])
@pytest.mark.parametrize("target_streams", [False, True])
@pytest.mark.parametrize(("source_id", "target_id"), [(0, 0), (0, 3), (2, 1), (3, 2)])
def test_saved_cells_go_on_elsewhere_to_the_last_bit(
    tiny_gguf: str, kv_type: str, source_streams: bool, target_streams: bool, source_id: int, target_id: int
) -> None:
    source = open_context(tiny_gguf, kv_type=kv_type, streams=source_streams)
    target = open_context(tiny_gguf, kv_type=kv_type, streams=target_streams)
    decode(source, TOKENS[:3], [], source_id)
    decode(target, [8, 8, 8, 8, 8], [], target_id)  # lost, as restore() says
    target.restore(source.save(source_id), target_id)
    held = [(-1, -1)] * SEQ_IDS
    held[target_id] = (0, 2)
    assert [target.positions(i) for i in range(SEQ_IDS)] == held
    here = decode(source, TOKENS[3:], [0, 1], source_id, start=3)
    there = decode(target, TOKENS[3:], [0, 1], target_id, start=3)
    np.testing.assert_array_equal(there, here, strict=True)
    back = target.save(target_id)
    source.restore(back, source_id)
    assert source.positions(source_id) == (0, 4)
    np.testing.assert_array_equal(
        decode(source, [9, 10], [1], source_id, start=5), decode(target, [9, 10], [1], target_id, start=5)
    )


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@EITHER
def test_saved_cells_find_room_between_those_of_others(tiny_gguf: str, kv_type: str, streams: bool) -> None:
    source = open_context(tiny_gguf, kv_type=kv_type, streams=streams)
    decode(source, TOKENS[:4], [], seq_id=1)
    target = open_context(tiny_gguf, kv_type=kv_type)
    for start in (0, 2):
        decode(target, [9, 9], [], seq_id=0, start=start)
        decode(target, [8], [], seq_id=2, start=start // 2)
    target.truncate(2, 0)
    target.restore(source.save(1), 1)
    assert [target.positions(i) for i in range(SEQ_IDS)] == [(0, 3), (0, 3), (-1, -1), (-1, -1)]
    there = decode(target, TOKENS[4:], [0], seq_id=1, start=4)
    here = decode(source, TOKENS[4:], [0], seq_id=1, start=4)
    np.testing.assert_allclose(there, here, atol=1e-4)


@EITHER
def test_saved_cells_that_do_not_fit_change_nothing(tiny_gguf: str, streams: bool) -> None:
    """Room for all but one of them; in a stream of its own, a sequence has room for any."""
    source, target = open_context(tiny_gguf, streams=streams), open_context(tiny_gguf)
    decode(source, [5] * 32, [])
    for start in range(0, target.cells - 32, 32):
        decode(target, [5] * 32, [], start=start)
    decode(target, [5], [], start=target.cells - 32)
    with pytest.raises(DecodeError):
        target.restore(source.save(0), 1)
    assert target.positions(0) == (0, target.cells - 32)
    assert [target.positions(i) for i in range(1, SEQ_IDS + 1)] == [(-1, -1)] * SEQ_IDS
    target.truncate(0, target.cells - 32)
    target.restore(source.save(0), 1)
    assert target.positions(1) == (0, 31)


@EITHER
@pytest.mark.parametrize("kind", ["width", "number format", "cut short", "magic number"])
def test_cells_of_another_kind_are_refused_and_the_context_goes_on(
    tiny_gguf: str, tmp_path: Path, kind: str, streams: bool
) -> None:
    path = write_tiny_gguf(tmp_path / "wide.gguf", width=128) if kind == "width" else tiny_gguf
    source = open_context(path, kv_type="f16" if kind == "number format" else "f32", streams=not streams)
    decode(source, TOKENS, [], seq_id=1)
    saved = source.save(1)
    if kind == "cut short":
        saved = SavedCells(saved.state[:-100], saved.streams, saved.stream)
    elif kind == "magic number":
        saved.state[: HEADER_BYTES - 8] ^= 255
    target = open_context(tiny_gguf, streams=streams)
    decode(target, TOKENS, [], seq_id=2)
    with pytest.raises(DecodeError):
        target.restore(saved, 1)
    assert [target.positions(i) for i in range(SEQ_IDS)] == [(-1, -1), (-1, -1), (0, 4), (-1, -1)]
    untouched = open_context(tiny_gguf, streams=streams)
    decode(untouched, TOKENS, [], seq_id=2)
    for seq_id, start in [(2, 5), (1, 0)]:
        np.testing.assert_allclose(
            decode(target, [9, 10], [0, 1], seq_id, start=start),
            decode(untouched, [9, 10], [0, 1], seq_id, start=start),
            atol=1e-4,
        )
