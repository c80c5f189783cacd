"""Models for batch-invariant mode: with repacked weights only where that changes nothing, else refused.

In processes of their own, since llama.cpp chooses some kernels once for each process.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from engine import EngineConfig, ModelLoadError
from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import EMPTY_DRAFT
from engine.llama import ggml_tensors
from engine.llama.context import Context
from engine.llama.model import Model, default_model_path, read_shape
from engine.weights import row_invariance
from engine.weights.format_selection import open_model
from engine.weights.quantise import requantise
from engine.weights.row_invariance import TILED_KERNELS, differing_rows, load_invariant
from tests.engine.helpers.drive import fresh, request, run
from tests.engine.helpers.tiny import write_tiny_gguf

FORMATS = ("q6_k", "q4_k_m", "q2_k", "iq4_nl", "q4_0", "q5_1")
CHUNK, CELLS = 50, 600  # rows of a call, and tokens before the lone one
INVARIANT = EngineConfig(batch_invariant=True, threads=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("wide")
    wide = write_tiny_gguf(folder / "f32.gguf", width=512, feed_forward=512)
    for format in FORMATS:
        requantise(wide, str(folder / f"{format}.gguf"), format, threads=1)
    return {format: str(folder / f"{format}.gguf") for format in FORMATS}


def apart(call: Callable[..., Any], *values: object) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *values).result()


def found(paths: list[str]) -> list[tuple[int | None, int | None, list[bool]]]:
    """Of each model: rows that differ with extra buffers, rows that do without, and how it was loaded."""
    results = []
    for path in paths:
        loads: list[bool] = []

        def load(extra_buffers: bool, path: str = path, loads: list[bool] = loads) -> Model:
            loads.append(extra_buffers)
            return Model(path, 0, extra_buffers=extra_buffers)

        with_extra, without = (differing_rows(load(extra), INVARIANT) for extra in (True, False))
        loads.clear()
        load_invariant(path, load, INVARIANT)
        results.append((with_extra, without, loads))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("tiled", [None, pytest.param("0", marks=pytest.mark.thorough)])
def test_weights_are_repacked_unless_rows_differ(
    models: dict[str, str], tiled: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an operator turns the tiled kernels off, which serves lone requests better."""
    if tiled:
        monkeypatch.setenv("GGML_CPU_TILED_MM", tiled)
    for with_extra, without, loads in apart(found, [*models.values()]):
        assert without is None
        assert loads == ([True] if with_extra is None else [True, False])


def refused_after_another_mode(path: str) -> str:
    run(fresh(path, kv_type="f16", weights="as_shipped", threads=1), [request("r", "abc")])
    with pytest.raises(ModelLoadError) as refused:
        open_model(EngineConfig(model=path, batch_invariant=True, threads=1))
    return str(refused.value)


@pytest.mark.slow
@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="no tiled kernels")
def test_a_model_whose_rows_differ_is_refused(models: dict[str, str]) -> None:
    """As they do in a process that has chosen llama.cpp's kernels of another mode."""
    message = apart(refused_after_another_mode, models["q2_k"])
    assert re.search(
        r"/q2_k.gguf: not for batch_invariant: of llama .*Q2_K.*, llama.cpp here computes ", message
    )
    assert "take another number format" in message


def test_products_that_cannot_be_watched_are_no_proof(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_invariance, "_tried", {})
    monkeypatch.setattr(ggml_tensors, "_OBJECT", ggml_tensors._OBJECT + 8)  # as if ggml had other tensors
    with pytest.raises(ModelLoadError, match="cannot be tried for batch_invariant: this build of"):
        open_model(replace(INVARIANT, model=tiny_gguf))


@pytest.mark.parametrize("before", [None, "0"])
def test_other_processes_choose_their_own_kernels(
    tiny_gguf: str, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TILED_KERNELS, raising=False)
    if before:
        monkeypatch.setenv(TILED_KERNELS, before)
    monkeypatch.setattr(row_invariance, "_tried", {})
    load_invariant(tiny_gguf, partial(_load, tiny_gguf), INVARIANT)
    assert os.environ.get(TILED_KERNELS) == before


@pytest.mark.slow
def test_no_companion_where_our_kernels_compute_a_lone_row() -> None:
    """Over more cells than llama.cpp, and our kernels, take at once."""
    model = load_invariant(default_model_path(), partial(_load, default_model_path()), INVARIANT)
    assert not model.companion_row
    context = Context(model, cells=2 * CELLS + 2, seq_ids=2, max_rows=CHUNK, threads=2)
    for seq_id in (0, 1):
        for start in range(0, CELLS, CHUNK):
            rows = RowsBuilder()
            rows.add(seq_id, [(7 * at) % 1000 for at in range(start, start + CHUNK)], start, EMPTY_DRAFT)
            context.decode(rows.build())
    found = []
    for seq_ids in ([0], [0, 1]):
        rows = RowsBuilder()
        for seq_id in seq_ids:
            rows.add(seq_id, [5], CELLS, EMPTY_DRAFT)
        found.append(context.decode(rows.build()).logits[0].copy())
        for seq_id in seq_ids:
            context.truncate(seq_id, CELLS)
    context.close()
    assert (found[0] == found[1]).all()


def test_a_companion_where_lone_products_differ(tiny_gguf: str) -> None:
    model = load_invariant(tiny_gguf, partial(_load, tiny_gguf), INVARIANT)
    assert model.companion_row


def test_a_companion_where_llama_cpp_computes_attention_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial has too few cells to see that."""
    computed = count(step=read_shape(default_model_path()).layers - 1)
    monkeypatch.setattr(row_invariance, "_tried", {})
    monkeypatch.setattr(row_invariance, "attentions_computed", lambda: next(computed))
    model = load_invariant(default_model_path(), partial(_load, default_model_path()), INVARIANT)
    assert model.companion_row


def _load(path: str, extra_buffers: bool) -> Model:
    return Model(path, 0, extra_buffers=extra_buffers)
