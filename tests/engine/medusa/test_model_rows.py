"""The output matrix read from GGUF files, against llama.cpp's own logits."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from engine.llama.context import Context, Outputs, Rows
from engine.llama.model import Model, default_model_path
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.model_rows import ModelRows

ROWS, WIDTH = 50, 64
BLOCK = 32  # of Q8_0
MATRIX = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)


def write(path: Path, quantization: str = "F32", *names: str) -> str:
    kind = GGMLQuantizationType[quantization]
    writer = GGUFWriter(str(path), "llama")
    for i, name in enumerate(names or ("output.weight",)):
        writer.add_tensor(name, quantize(MATRIX + i, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.mark.parametrize(
    ("quantization", "error"), [("F32", 0.0), ("F16", 0.002), ("BF16", 0.02), ("Q8_0", 0.02), ("Q4_0", 0.5)]
)
def test_rows_are_dequantised(tmp_path: Path, quantization: str, error: float) -> None:
    rows = ModelRows(write(tmp_path / "m.gguf", quantization)).lm_head()
    assert rows.shape == (ROWS, WIDTH)
    assert rows.dtype == np.float32
    assert np.abs(rows - MATRIX).max() <= error


def test_only_the_rows_asked_for(tmp_path: Path) -> None:
    path, ids = write(tmp_path / "m.gguf", "Q8_0"), np.array([7, 3, 49], dtype=np.int32)
    assert np.array_equal(ModelRows(path).lm_head(ids), ModelRows(path).lm_head()[ids])


def test_a_tied_model_has_its_embeddings(tmp_path: Path) -> None:
    assert np.array_equal(
        ModelRows(write(tmp_path / "tied.gguf", "F32", "token_embd.weight")).lm_head(), MATRIX
    )
    both = write(tmp_path / "both.gguf", "F32", "token_embd.weight", "output.weight")
    assert np.array_equal(ModelRows(both).lm_head(), MATRIX + 1)


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    """Even where the other one is as long and as old."""
    path = write(tmp_path / "m.gguf", "F32", "output.weight", "other")
    assert np.array_equal(ModelRows(path).lm_head(), MATRIX)
    other = write(tmp_path / "n.gguf", "F32", "other", "output.weight")
    before, after = Path(path).stat(), Path(other).stat()
    assert before.st_size == after.st_size
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    Path(other).replace(path)
    assert np.array_equal(ModelRows(path).lm_head(), MATRIX + 1)


def outputs(path: str, kv_type: str) -> tuple[Outputs, Model]:
    model = Model(path)
    context = Context(model, cells=256, seq_ids=1, max_rows=8, kv_type=kv_type)
    tokens = np.array([5, 40, 300, 17], dtype=np.int32)
    rows = Rows(tokens, np.arange(4, dtype=np.int32), np.zeros(4, dtype=np.int32), np.ones(4, dtype=np.int8))
    given = context.decode(rows, hidden=True)
    assert given.hidden is not None
    return Outputs(given.logits.copy(), given.hidden.copy()), model


def test_hidden_states_times_the_lm_head_are_the_models_logits(tiny_gguf: str) -> None:
    (logits, hidden), model = outputs(tiny_gguf, "f32")
    assert hidden is not None
    rows = ModelRows(tiny_gguf).lm_head()
    assert rows.shape == (model.vocab_size, model.width)
    np.testing.assert_allclose(hidden @ rows.T, logits, atol=1e-4)


@pytest.mark.slow
def test_the_same_holds_for_the_default_model_within_quantisation() -> None:
    """For matrices in Q8_0, llama.cpp's kernels round the states to Q8_0 as well.

    Of a block's values each is off by up to half a step, and the step, in F16, by up to 2^-11. No sum of
    such errors is beyond 7 standard deviations more often than once in 10^10; here are 200,000.
    """
    path = default_model_path()
    (logits, hidden), model = outputs(path, "f16")
    assert hidden is not None
    rows = ModelRows(path).lm_head()
    assert rows.shape == (model.vocab_size, model.width)
    ours = hidden @ rows.T
    steps = np.abs(hidden.reshape(len(hidden), -1, BLOCK)).max(axis=2) / 127
    squares = (rows.reshape(len(rows), -1, BLOCK) ** 2).sum(axis=2)
    off = 7 * np.sqrt(steps**2 / 12 @ squares.T) + 2**-11 * np.abs(hidden) @ np.abs(rows).T
    assert off.max() < 0.05 * np.ptp(logits), "which says something"
    assert (np.abs(ours - logits) < off).all()


def refused(path: str, reason: str, ids: list[int] | None = None) -> None:
    with pytest.raises(HeadsLoadError, match=reason) as error:
        ModelRows(path).lm_head(None if ids is None else np.array(ids, dtype=np.int32))
    assert error.value.message.startswith(f"{path}: ")
    assert "\n" not in error.value.message


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused(str(tmp_path / "missing.gguf"), "No such file")
    refused(write(tmp_path / "other.gguf", "F32", "blk.0.x"), r"holds no output.weight or token_embd.weight")
    refused(write(tmp_path / "short.gguf"), "cannot be read", ids=[ROWS])
    whole = Path(write(tmp_path / "m.gguf")).read_bytes()
    for length in (0, 3, 30, len(whole) // 2):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        refused(str(tmp_path / "cut.gguf"), "cannot be read")
