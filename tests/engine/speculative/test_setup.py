"""What belongs to a model: the profile that was measured for it, and the heads that were trained for it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from engine import EngineConfig
from engine.llama.model import default_model_path
from engine.medusa.model_rows import FINAL_NORM, fingerprint
from engine.speculative.setup import _key, shipped_heads
from engine.weights.format_selection import open_model, unpacked
from engine.weights.quantise import requantise
from tests.engine.helpers.tiny import write_tiny_gguf


def key(model: str, **config: object) -> str:
    settings = EngineConfig(model=model, slots=2, kv_cells=256, **config)  # type: ignore[arg-type]
    return _key(open_model(settings), settings)


@pytest.fixture
def model(tiny_gguf: str, tmp_path: Path) -> str:
    """One that a test may change."""
    path = tmp_path / "model.gguf"
    path.write_bytes(Path(tiny_gguf).read_bytes())
    return str(path)


def test_a_profile_is_kept_for_all_that_it_depends_on(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = key(model)
    assert key(model) == first
    changed = [
        key(model, threads=1),
        key(model, kv_type="f32"),
        key(model, batch_invariant=True),
        key(model, gpu_layers=0),
        key(model, weights="bf16"),
    ]
    for name, value in (("machine", "another processor"), ("build", "a newer llama.cpp")):
        with monkeypatch.context() as patch:
            patch.setattr(f"engine.speculative.setup.{name}", lambda value=value: value)
            changed.append(key(model))
    os.utime(model, (1, 1))
    changed.append(key(model))
    assert len({first, *changed}) == 1 + len(changed)


def test_shipped_heads_are_for_the_default_model_in_another_format_and_by_another_name() -> None:
    shipped, other = shipped_heads(default_model_path()), unpacked(default_model_path())
    assert shipped is not None
    assert Path(other).name != Path(default_model_path()).name
    assert shipped_heads(other) == shipped


@pytest.mark.parametrize("format", ["f16", "q8_0", "q4_0", "q2_k"])
@pytest.mark.slow
def test_a_model_keeps_its_fingerprint_in_every_format(tmp_path: Path, format: str) -> None:
    """A tiny one, whose rows the coarsest formats can pack too."""
    path, other = str(tmp_path / "tiny.gguf"), str(tmp_path / "other.gguf")
    ones = fingerprint(write_tiny_gguf(Path(path), width=256, feed_forward=256))
    norm = next(t.data for t in GGUFReader(path, "r+").tensors if t.name == FINAL_NORM)
    norm[:] = np.random.default_rng(1).standard_normal(norm.shape)
    requantise(path, other, format)
    assert Path(other).stat().st_size < Path(path).stat().st_size
    assert fingerprint(other) == fingerprint(path) != ones


def test_shipped_heads_are_for_no_other_model(tiny_gguf: str) -> None:
    assert fingerprint(tiny_gguf) != fingerprint(default_model_path())
    assert shipped_heads(tiny_gguf) is None
