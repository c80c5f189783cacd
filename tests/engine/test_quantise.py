"""The same weights in another number format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.errors import ModelLoadError
from engine.lm_head import lm_head_rows
from engine.model import Model
from engine.quantise import FORMATS, requantise


@pytest.mark.parametrize(("format", "error"), [("f16", 1e-3), ("bf16", 1e-2), ("q8_0", 2e-2), ("q4_0", 0.3)])
def test_weights_stay_what_they_were(tiny_gguf: str, tmp_path: Path, format: str, error: float) -> None:
    assert format in FORMATS
    target = str(tmp_path / "made.gguf")
    requantise(tiny_gguf, target, format, threads=1)
    before, after = lm_head_rows(tiny_gguf), lm_head_rows(target)
    assert np.abs(before - after).max() < error * np.abs(before).max()
    assert Model(target).vocab_size == Model(tiny_gguf).vocab_size


def test_a_quantised_model_can_be_quantised_again(tiny_gguf: str, tmp_path: Path) -> None:
    requantise(tiny_gguf, str(tmp_path / "a.gguf"), "q4_0", threads=1)
    requantise(str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf"), "bf16", threads=1)
    first, second = (lm_head_rows(str(tmp_path / name)) for name in ("a.gguf", "b.gguf"))
    np.testing.assert_allclose(first, second, rtol=1e-2)


def test_what_is_wrong_is_named_and_nothing_is_left(tiny_gguf: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file"):
        requantise(str(tmp_path / "none.gguf"), str(tmp_path / "made.gguf"), "f16")
    with pytest.raises(ModelLoadError, match="cannot be written"):
        requantise(tiny_gguf, str(tmp_path / "none" / "made.gguf"), "f16")
    (tmp_path / "damaged.gguf").write_bytes(Path(tiny_gguf).read_bytes()[:5000])
    with pytest.raises(ModelLoadError, match=r"damaged\.gguf: llama.cpp cannot write it as f16: "):
        requantise(str(tmp_path / "damaged.gguf"), str(tmp_path / "made.gguf"), "f16")
    assert [p.name for p in tmp_path.iterdir()] == ["damaged.gguf"]
