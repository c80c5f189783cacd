"""The small operations of a layer, beside their definitions in F64; and whole layers by teams of threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.llama.kernels import load_kernels
from tests.engine.kernels import graphs
from tests.engine.kernels.attention import VARIANTS
from tests.engine.kernels.graphs import BASE, CELLS, EPSILON, HALVES, HEAD, NEIGHBOURS, Array, Graph

WIDTHS = (HEAD, 3 * HEAD, 70)  # the last one fills no vector


@pytest.fixture(params=VARIANTS)
def backend(request: pytest.FixtureRequest) -> Iterator[int]:
    found = load_kernels()
    library = ctypes.CDLL(str(found.path))
    if not library.medusaq_kernels_use(request.param.encode()):
        pytest.skip("this processor lacks it")
    one = graphs.new_backend()
    yield one
    graphs.call("ggml_backend_free", one)
    assert library.medusaq_kernels_use(found.variant.encode())


def numbers(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) * np.exp(rng.standard_normal())).astype(np.float32)


def close(found: Array, expected: Array) -> bool:
    return bool(np.allclose(found, expected, rtol=3e-6, atol=3e-6 * np.abs(expected).max()))


@pytest.mark.parametrize("width", WIDTHS)
def test_what_takes_each_row_by_itself(backend: int, width: int) -> None:
    rng = np.random.default_rng(width)
    x, y, weights, both = (numbers(rng, n, width) for n in (7, 7, 1, 14))
    both = both.reshape(7, 2 * width)
    graph = Graph(backend, 7)
    one, other, weight, pair = (graph.given(value) for value in (x, y, weights[0], both))
    chosen = graph.given(np.array([6, 0, 0], np.int32))
    for node in (
        graph.apply("rms_norm", one, EPSILON),
        graph.apply("mul", one, weight),
        graph.apply("add", one, weight),
        graph.apply("add", one, other),
        graph.apply("swiglu_split", one, other),
        graph.apply("swiglu", pair),
        graph.apply("swiglu_swapped", pair),
        graph.apply("get_rows", one, chosen),
    ):
        graph.keep(node)

    def gated(a: Array, b: Array) -> Array:
        return a / (1 + np.exp(-a.astype(np.float64))) * b

    halves = both[:, :width], both[:, width:]
    expected = (
        x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + EPSILON),
        *(x * weights, x + weights, x + y, gated(x, y), gated(*halves), gated(*halves[::-1])),
        x[[6, 0, 0]],
    )
    for found, value in zip(graph.run(2), expected, strict=True):
        assert close(found[0, 0], value)


def test_what_is_far_from_zero_is_gated_without_overflow(backend: int) -> None:
    x = np.array([[-np.inf, -1e30, -200, -90, 90, 200, 1e30, np.nan] * 3], np.float32)
    graph = Graph(backend, 1)
    graph.keep(graph.apply("swiglu_split", graph.given(x), graph.given(np.ones_like(x))))
    found = graph.run(1)[0][0, 0, 0]
    with np.errstate(invalid="ignore"):
        assert np.array_equal(found[4:7], x[0, 4:7])
    assert np.isnan(found[7::8]).all()
    assert (np.abs(found[1:4]) < 1e-5).all()


@pytest.mark.parametrize("mode", [NEIGHBOURS, HALVES])
@pytest.mark.parametrize("scaled", [False, True])
def test_positions_turn_pairs(backend: int, mode: int, scaled: bool) -> None:
    rng = np.random.default_rng(5)
    x = numbers(rng, 6, 3, HEAD + 16)  # the last 16 are not turned
    positions = np.array([0, 1, 7, 500, 1999, 3], np.int32)
    factors = np.linspace(1, 4, HEAD // 2).astype(np.float32)
    graph = Graph(backend, 6)
    tensor = graph.apply("reshape_3d", graph.given(x.reshape(6, -1)), HEAD + 16, 3, 6)
    given = graph.given(factors) if scaled else None
    graph.keep(graph.rotate(tensor, graph.given(positions), mode, given))

    angles = 0.5 * positions[:, None, None] * BASE ** (-np.arange(HEAD // 2) / (HEAD // 2))
    turns = 1.25 * np.exp(1j * (angles / factors if scaled else angles))
    turned, kept = x[..., :HEAD].astype(np.float64), x[..., HEAD:]
    if mode == NEIGHBOURS:
        pairs = (turned[..., ::2] + 1j * turned[..., 1::2]) * turns
        expected = np.stack((pairs.real, pairs.imag), -1).reshape(turned.shape)
    else:
        pairs = (turned[..., : HEAD // 2] + 1j * turned[..., HEAD // 2 :]) * turns
        expected = np.concatenate((pairs.real, pairs.imag), -1)
    [found] = graph.run(2)
    assert np.array_equal(found[0, ..., HEAD:], kept)
    # Angles are products in F32: at position 1,999 they are known to 1e-4.
    assert np.abs(found[0, ..., :HEAD] - expected).max() < 3e-4 * np.abs(x).max()


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("width", WIDTHS)
def test_cells_are_rounded_to_the_nearest(backend: int, kind: type, width: int) -> None:
    rng = np.random.default_rng(3)
    x = numbers(rng, 5, width)
    x[0, :4] = np.nan, np.inf, -np.inf, 1e30
    graph = Graph(backend, 5)
    cells = np.array([4, 0, 39, 7, 8], np.int64)
    old = np.zeros((CELLS, width), np.uint16)
    graph.keep(graph.apply("set_rows", graph.cache(old, kind), graph.given(x), graph.given(cells)))
    [found] = graph.run(2)
    with np.errstate(over="ignore"):
        expected = old.view(kind).copy()
        expected[cells] = x.astype(kind)
    assert np.array_equal(found[0, 0].astype(np.float32), expected.astype(np.float32), equal_nan=True)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), tokens=st.integers(1, CELLS), threads=st.integers(2, 5))
def test_a_team_computes_a_layer_as_one_thread_does(seed: int, tokens: int, threads: int) -> None:
    assert load_kernels().path
    team, alone = graphs.by_team_and_alone(seed, tokens, threads)
    for ours, theirs in zip(team, alone, strict=True):
        assert np.isfinite(theirs).all()
        assert np.array_equal(ours, theirs)
