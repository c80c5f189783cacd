"""The kernels inside llama.cpp: they compute, and the results are those of llama.cpp."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from common.llama_build import KERNELS_VARIABLE
from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import EMPTY_DRAFT
from engine.kernels.build import KernelsMissing
from engine.llama import kernels
from engine.llama.context import Context
from engine.llama.kernels import enable_kernels, load_kernels
from engine.llama.model import Model, build, default_model_path
from tests.engine.kernels.attention import VARIANTS

SEQUENCES = 3
STEPS = 20


@pytest.fixture(scope="module")
def model() -> Model:
    """The packaged one: those of other tests have heads that are too small."""
    return Model(default_model_path())


def logits(model: Model, *, streams: bool, kv_type: str = "f16") -> NDArray[np.float32]:
    context = Context(
        model, cells=256, seq_ids=SEQUENCES, max_rows=8, threads=2, streams=streams, kv_type=kv_type
    )
    found = []
    for step in range(STEPS):
        rows = RowsBuilder()
        for seq_id in range(SEQUENCES):
            rows.add(seq_id, [5 + 7 * step + seq_id], step, EMPTY_DRAFT)
        found.append(context.decode(rows.build()).logits.copy())
    context.close()
    return np.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
def test_llama_cpp_computes_with_them_as_exactly_as_with_its_own(model: Model, streams: bool) -> None:
    ours = logits(model, streams=streams)
    try:
        enable_kernels(False)
        theirs = logits(model, streams=streams)
        exact = logits(model, streams=streams, kv_type="f32")
    finally:
        enable_kernels(True)
    assert (ours != theirs).any(), "the kernels were not used"
    assert np.abs(ours - exact).mean() < 1.2 * np.abs(theirs - exact).mean()
    assert (logits(model, streams=streams) == ours).all()


def test_what_computes_is_named() -> None:
    found = load_kernels()
    assert found.variant in VARIANTS
    assert str(found) in build()


def test_why_there_are_none_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise KernelsMissing("there is no compiler")

    monkeypatch.setattr(kernels, "library", missing)
    found = load_kernels.__wrapped__()
    assert (str(found), found.missing) == ("no kernels", "there is no compiler")
    assert caplog.messages == [
        "llama.cpp computes with its own kernels, which are slower: there is no compiler"
    ]


def test_the_variable_turns_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "off")
    assert load_kernels.__wrapped__().missing == "MEDUSAQ_KERNELS is off"


def test_the_variable_chooses_a_variant(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fastest = load_kernels()
    try:
        monkeypatch.setenv(KERNELS_VARIABLE, "AVX2")
        chosen = load_kernels.__wrapped__()
        monkeypatch.setenv(KERNELS_VARIABLE, "AVX3")
        assert load_kernels.__wrapped__() == chosen
    finally:
        monkeypatch.setenv(KERNELS_VARIABLE, fastest.variant)
        assert load_kernels.__wrapped__() == fastest
    assert chosen.variant == "AVX2"
    assert caplog.messages == ["MEDUSAQ_KERNELS: this processor has no variant AVX3"]
