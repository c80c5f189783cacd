"""Attention of decoded rows, beside its definition in F64, and whatever else is in the call."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.kernels.attention import (
    BF16,
    F16,
    MANY_ROWS,
    Q8_0,
    VARIANTS,
    Case,
    any_case,
    differences,
    tolerance,
)

pytestmark = pytest.mark.slow
cases = st.builds(any_case, st.integers(0, 2**32).map(random.Random))


@settings(max_examples=150, deadline=None)
@given(case=cases)
def test_it_gives_what_the_definition_says(kernels: ctypes.CDLL, case: Case) -> None:
    found = differences(kernels, case)
    assert found, "a processor without AVX2"
    assert max(found.values()) < tolerance(case)


@settings(max_examples=60, deadline=None)
@given(case=cases, threads=st.integers(1, 5))
def test_a_row_does_not_depend_on_its_company_or_the_threads(
    kernels: ctypes.CDLL, case: Case, threads: int
) -> None:
    numbers = case.numbers()
    for variant in VARIANTS:
        if (together := numbers.attend(kernels, variant)) is None:
            continue
        for stream in range(case.streams):
            if case.rows >= MANY_ROWS:  # which are computed in another way than few
                shifted = numbers.some(stream, range(case.rows - MANY_ROWS, case.rows))
                parts = [(shifted, case.rows - MANY_ROWS)]
            else:
                parts = [(numbers.some(stream, range(row, row + 1)), row) for row in range(case.rows)]
            for part, first in parts:
                alone = part.attend(kernels, variant, threads)
                assert alone is not None
                same = together[stream, first : first + alone.shape[1]]
                assert (alone[0].view(np.uint32) == same.view(np.uint32)).all()


@pytest.mark.parametrize("rows", [2, MANY_ROWS])
@pytest.mark.parametrize("cell_type", [F16, BF16, Q8_0])
def test_what_is_hidden_is_not_read(kernels: ctypes.CDLL, cell_type: int, rows: int) -> None:
    """Another request's cells may hold anything."""
    numbers = Case(rows=rows, cells=300, heads_per_kv=3, cell_type=cell_type).numbers()
    assert numbers.mask is not None
    numbers.mask[:, :, 100:] = -np.inf
    before = {variant: numbers.attend(kernels, variant) for variant in VARIANTS}
    numbers.k[:, 100:], numbers.v[:, 100:] = (np.array(-1).astype(a.dtype) for a in (numbers.k, numbers.v))
    if cell_type != F16:
        numbers.k.view(np.uint8)[:, 100:] = numbers.v.view(np.uint8)[:, 100:] = 0xFF
    else:
        numbers.k[:, 100:] = numbers.v[:, 100:] = np.nan
    for variant, out in before.items():
        if out is not None:
            again = numbers.attend(kernels, variant)
            assert again is not None
            assert (again == out).all()
            numbers.mask[:, 1, 200] = 0.0  # which one row sees then, in company of those that do not
            again = numbers.attend(kernels, variant)
            assert again is not None
            assert np.isnan(again[:, 1]).all()
            numbers.mask[:, 1, 200] = -np.inf
            again[:, 1] = out[:, 1]
            assert (again == out).all()


@pytest.mark.parametrize("extreme", [6e4, 3e-8, 0.0])
def test_extreme_values(kernels: ctypes.CDLL, extreme: float) -> None:
    numbers = Case(cells=200, heads_per_kv=2, hidden=None).numbers()
    numbers.queries[:] = np.sign(numbers.queries) * extreme
    numbers.v[:], numbers.values[:] = extreme, np.float16(extreme)
    for variant in VARIANTS:
        if (out := numbers.attend(kernels, variant)) is not None:
            assert out == pytest.approx(np.float32(np.float16(extreme)), rel=1e-6)


def test_what_is_no_number_is_told(kernels: ctypes.CDLL) -> None:
    numbers = Case(cells=200, hidden=None).numbers()
    numbers.k[0, 70] = np.nan
    for variant in VARIANTS:
        if (out := numbers.attend(kernels, variant)) is not None:
            assert np.isnan(out).all()
