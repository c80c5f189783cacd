"""A widened model says what the small one does, and only because of how it is widened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from numpy.typing import NDArray

from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import EMPTY_DRAFT
from engine.llama.context import Context, Outputs
from engine.llama.model import Model, default_model_path, read_shape
from engine.medusa.loader import load_heads
from engine.medusa.model_rows import ModelRows
from engine.speculative.setup import shipped_heads
from engine.weights.quantise import requantise
from tests.benchmarks.large.shapes import PRESETS, Shape, parse_shape
from tests.benchmarks.large.widened import ABOUT, CannotWiden, widen
from tests.benchmarks.large.widened_heads import widen_heads
from tests.engine.helpers.drive import alone, request
from tests.engine.helpers.tiny import (
    FEED_FORWARD,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCAB,
    WIDTH,
    write_tiny_gguf,
    write_tiny_mamba,
)

TINY = Shape(WIDTH, HEADS, FEED_FORWARD, LAYERS)
WIDER = Shape(160, 10, 192, 5)  # no side by a power of two, so that no scale is exact
ALIGNED = Shape(512, 8, 768, 4)  # as Q4_K needs it
CLOSE = 2e-4  # of logits that spread over some 10, in F32


def outputs(path: Path, tokens: list[int]) -> Outputs:
    """Logits and states after each of these tokens, computed in F32."""
    model = Model(str(path), 0)
    context = Context(model, cells=len(tokens), seq_ids=1, max_rows=len(tokens), kv_type="f32")
    rows = RowsBuilder()
    for position, token in enumerate(tokens):
        rows.add(0, [token], position, EMPTY_DRAFT)
    logits, hidden = context.decode(rows.build(), hidden=True)
    assert hidden is not None
    return Outputs(logits.copy(), hidden.copy())


def some_tokens(count: int, most: int = VOCAB) -> list[int]:
    return [int(token) for token in np.random.default_rng(3).integers(3, most, size=count)]


def largest_difference(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(np.abs(one - other).max())


def forget_scales(path: Path, small: int, wide: int) -> None:
    """Give the norms of a widened F32 model the weights that they had."""
    for tensor in GGUFReader(str(path), "r+").tensors:
        if "norm" in tensor.name:
            np.multiply(tensor.data, (wide / small) ** 0.5, out=tensor.data)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf"))


@pytest.mark.parametrize(
    "shape",
    [WIDER, Shape(WIDTH, HEADS, FEED_FORWARD, LAYERS + 1), Shape(WIDTH, HEADS + 4, FEED_FORWARD, LAYERS)],
    ids=str,
)
def test_logits_and_states_stay(tiny: Path, tmp_path: Path, shape: Shape) -> None:
    parameters = widen(tiny, tmp_path / "wide.gguf", shape, "f32")
    tokens = some_tokens(40)
    small, wide = outputs(tiny, tokens), outputs(tmp_path / "wide.gguf", tokens)
    assert largest_difference(small.logits, wide.logits) < CLOSE
    assert small.hidden is not None
    assert wide.hidden is not None
    assert largest_difference(small.hidden, wide.hidden[:, :WIDTH]) < CLOSE
    assert not wide.hidden[:, WIDTH:].any()
    found = read_shape(str(tmp_path / "wide.gguf"))
    assert (found.width, found.heads, found.feed_forward, found.layers) == (
        shape.width,
        shape.heads,
        shape.feed_forward,
        shape.layers,
    )
    assert found.parameters == parameters
    assert found.cell_bytes == 2 * shape.layers * 2 * shape.heads * KV_HEADS // HEADS * (WIDTH // HEADS)


def test_without_the_scale_of_norms_they_do_not(tiny: Path, tmp_path: Path) -> None:
    widen(tiny, tmp_path / "wide.gguf", WIDER, "f32")
    forget_scales(tmp_path / "wide.gguf", WIDTH, WIDER.width)
    tokens = some_tokens(40)
    difference = largest_difference(
        outputs(tiny, tokens).logits, outputs(tmp_path / "wide.gguf", tokens).logits
    )
    assert difference > 1000 * CLOSE


@pytest.mark.parametrize("format", ["f16", "bf16", "q8_0", "q4_0"])
def test_zeros_lose_nothing_in_other_formats(tiny: Path, tmp_path: Path, format: str) -> None:
    """Its weights are those of the small model in the same format, to the last bits that F32 has.

    Served as it is, activations may be rounded as well, and in other layers than those of the small model,
    since some kernels take whole tiles only: never to fewer bits than weights, so by no more than these lost.
    """
    tokens = some_tokens(40)
    exact = outputs(tiny, tokens).logits
    of_weights, served = {}, {}
    for name, shape in (("small", TINY), ("wide", WIDER)):
        path, as_f32 = tmp_path / f"{name}.gguf", tmp_path / f"{name}-f32.gguf"
        widen(tiny, path, shape, format)
        requantise(str(path), str(as_f32), "f32")
        served[name], of_weights[name] = (outputs(each, tokens).logits for each in (path, as_f32))
    assert largest_difference(of_weights["wide"], of_weights["small"]) < CLOSE
    lost = np.abs(of_weights["small"] - exact).mean()
    assert lost > 10 * CLOSE
    for logits in served.values():
        assert np.abs(logits - of_weights["small"]).mean() < 1.5 * lost


def test_k_quants_fit_a_shape_of_whole_blocks(tmp_path: Path) -> None:
    tiny = Path(write_tiny_gguf(tmp_path / "tiny.gguf", width=256, feed_forward=512))
    widen(tiny, tmp_path / "wide.gguf", ALIGNED, "q4_k_m")
    types = {tensor.tensor_type.name for tensor in GGUFReader(str(tmp_path / "wide.gguf")).tensors}
    assert types == {"F32", "Q4_K", "Q6_K"}
    tokens = some_tokens(40)
    requantise(str(tiny), str(tmp_path / "small.gguf"), "q4_k_m")
    exact = outputs(tiny, tokens).logits
    small, wide = (outputs(tmp_path / f"{name}.gguf", tokens).logits for name in ("small", "wide"))
    lost, lost_wide = (np.abs(logits - exact).mean() for logits in (small, wide))
    assert lost_wide < 1.5 * lost


def test_it_says_what_it_is(tiny: Path, tmp_path: Path) -> None:
    widen(tiny, tmp_path / "wide.gguf", WIDER, "f16")
    fields = GGUFReader(str(tmp_path / "wide.gguf")).fields
    assert fields["general.description"].contents() == ABOUT.format(small="tiny", size="0.00B")
    assert fields["tokenizer.chat_template"].contents() == Model(str(tiny)).chat_template


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (Shape(WIDTH - 16, HEADS, FEED_FORWARD, LAYERS), "width 48 is less than the 64 of tiny"),
        (Shape(WIDTH, HEADS, FEED_FORWARD, LAYERS - 1), "layers 1 is less than the 2 of tiny"),
        (Shape(WIDTH, HEADS + 1, FEED_FORWARD, LAYERS), "must be a multiple of 2, which share a key"),
    ],
    ids=str,
)
def test_shapes_that_do_not_hold_the_model_are_refused(
    tiny: Path, tmp_path: Path, shape: Shape, why: str
) -> None:
    with pytest.raises(CannotWiden, match=why):
        widen(tiny, tmp_path / "wide.gguf", shape, "f32")
    assert not list(tmp_path.iterdir())


def test_other_models_are_refused(tmp_path: Path) -> None:
    mamba = Path(write_tiny_mamba(tmp_path / "mamba.gguf"))
    with pytest.raises(CannotWiden, match="of architecture mamba, and only llama is widened"):
        widen(mamba, tmp_path / "wide.gguf", WIDER, "f32")
    experts = Path(write_tiny_gguf(tmp_path / "experts.gguf", experts=4))
    with pytest.raises(CannotWiden, match=r"ffn_gate_inp.weight of shape \(4, 64\) is not known"):
        widen(experts, tmp_path / "wide.gguf", WIDER, "f32")


def test_presets_hold_the_default_model_in_every_format() -> None:
    """Q4_K packs 256 weights of a row; the default model has three queries to a key."""
    small = read_shape(default_model_path())
    for shape in PRESETS.values():
        assert shape.width % 256 == shape.feed_forward % 256 == shape.heads * 64 % 256 == 0
        assert shape.heads % 3 == 0
        assert shape.layers >= small.layers
        assert parse_shape(str(shape)) == shape


# The default model, in F32

BROADER = Shape(640, 12, 1792, 31)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    requantise(default_model_path(), str(path), "f32")
    return path


@pytest.fixture(scope="module")
def broad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "broad.gguf"
    widen(Path(default_model_path()), path, BROADER, "f32")
    return path


def answer(path: Path, tokens: int) -> tuple[int, ...]:
    asked = request("-", "The three longest rivers of Europe are", max_tokens=tokens)
    return alone(str(path), [asked], kv_cells=256)["-"].tokens


@pytest.fixture(scope="module")
def said(small: Path) -> tuple[int, ...]:
    return answer(small, 64)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_default_model_says_the_same_64_tokens(said: tuple[int, ...], broad: Path) -> None:
    assert len(said) == 64
    assert answer(broad, 64) == said


@pytest.mark.slow
def test_the_default_model_has_the_same_logits_and_states(small: Path, broad: Path) -> None:
    tokens = some_tokens(24, most=49_000)
    one, other = outputs(small, tokens), outputs(broad, tokens)
    assert largest_difference(one.logits, other.logits) < 1e-2
    assert one.hidden is not None
    assert other.hidden is not None
    width = one.hidden.shape[1]
    assert largest_difference(one.hidden, other.hidden[:, :width]) < 1e-2
    assert not other.hidden[:, width:].any()


@pytest.mark.slow
def test_the_packaged_heads_guess_the_same(
    said: tuple[int, ...], small: Path, broad: Path, tmp_path: Path
) -> None:
    shipped = shipped_heads(default_model_path())
    assert shipped
    widen_heads(shipped, tmp_path / "broad.safetensors", broad)

    def best(heads: Path, path: Path) -> NDArray[np.int32]:
        model = Model(str(path), 0)
        loaded = load_heads(
            str(heads), width=model.width, vocab_size=model.vocab_size, model_rows=ModelRows(str(path))
        )
        hidden = outputs(path, list(said)).hidden
        assert hidden is not None
        above = np.lib.stride_tricks.sliding_window_view(np.array(said[1:], dtype=np.int32), loaded.heads)
        return loaded.propose(hidden[: len(above)], loaded.heads, 1, path=above)[0]

    # Activations are rounded to 8 bits, which a last bit of a state may tip.
    assert (best(shipped, small) == best(tmp_path / "broad.safetensors", broad)).mean() > 0.97


@pytest.mark.slow
def test_without_the_scale_of_norms_it_says_others(said: tuple[int, ...], broad: Path) -> None:
    width = read_shape(default_model_path()).width
    forget_scales(broad, width, BROADER.width)
    try:
        assert answer(broad, 16) != said[:16]
    finally:
        forget_scales(broad, BROADER.width, width)
