"""Products with quantised weights, beside their definition in F64, and whatever else is in the call."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.kernels.attention import VARIANTS
from tests.engine.kernels.products import BLOCK, TOLERANCE, TYPES, Case, any_case, differences

pytestmark = pytest.mark.slow
cases = st.builds(any_case, st.integers(0, 2**32).map(random.Random))


@settings(max_examples=150, deadline=None)
@given(case=cases)
def test_it_gives_what_the_definition_says(kernels: ctypes.CDLL, case: Case) -> None:
    found = differences(kernels, case)
    assert found, "a processor without AVX2"
    assert max(found.values()) < TOLERANCE


@settings(max_examples=60, deadline=None)
@given(case=cases, threads=st.integers(1, 5))
def test_a_row_does_not_depend_on_its_company_or_the_threads(
    kernels: ctypes.CDLL, case: Case, threads: int
) -> None:
    numbers = case.numbers()
    for variant in VARIANTS:
        if (together := numbers.multiply(kernels, variant)) is None:
            continue
        for row in range(0, case.rows, 7):
            alone = numbers.multiply(kernels, variant, slice(row, row + 1), threads)
            assert alone is not None
            assert (alone[0].view(np.uint32) == together[row].view(np.uint32)).all()


@pytest.mark.parametrize("weights", TYPES)
def test_all_variants_round_alike(kernels: ctypes.CDLL, weights: str) -> None:
    numbers = Case(weights, inputs=512, outputs=40, rows=9).numbers()
    found = [out for variant in VARIANTS if (out := numbers.multiply(kernels, variant)) is not None]
    for out in found[1:]:
        assert (out == found[0]).all()


@pytest.mark.parametrize("weights", TYPES)
def test_what_is_no_number_is_told_in_its_row_alone(kernels: ctypes.CDLL, weights: str) -> None:
    numbers = Case(weights, inputs=512, outputs=20, rows=5).numbers()
    numbers.meant[:] = 1.0
    clean = {variant: numbers.multiply(kernels, variant) for variant in VARIANTS}
    numbers.activations[1, 300], numbers.activations[3, 40] = np.nan, -np.inf
    for variant, before in clean.items():
        if (out := numbers.multiply(kernels, variant)) is not None:
            assert np.isnan(out[[1, 3]]).all()
            assert (out[[0, 2, 4]] == before[[0, 2, 4]]).all()


@pytest.mark.parametrize("size", [1e-35, 1e-20, 1e30, 0.0])
def test_extreme_activations(kernels: ctypes.CDLL, size: float) -> None:
    """Some are too small to be scaled, and are zero."""
    numbers = Case("Q8_0", inputs=2 * BLOCK, outputs=16, rows=2).numbers()
    numbers.activations[:] *= np.float32(size)
    expected = numbers.expected() if size > 1e-30 else np.zeros((2, 16))
    for variant in VARIANTS:
        if (out := numbers.multiply(kernels, variant)) is not None:
            assert out == pytest.approx(expected, rel=1e-3, abs=size * 1e-3)
