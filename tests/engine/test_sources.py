"""What belongs to a model: the profile that was measured for it, and the heads that were trained for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine import EngineConfig
from engine.engine import Engine
from engine.lm_head import fingerprint
from engine.model import default_model_path
from engine.quantise import requantise
from engine.sources import _key, shipped_heads


def key(model: str, **config: object) -> str:
    settings = EngineConfig(model=model, slots=2, kv_cells=256, **config)  # type: ignore[arg-type]
    return _key(Engine(settings), settings)


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
            patch.setattr(f"engine.sources.{name}", lambda value=value: value)
            changed.append(key(model))
    os.utime(model, (1, 1))
    changed.append(key(model))
    assert len({first, *changed}) == 1 + len(changed)


def test_shipped_heads_are_for_the_default_model_in_every_format(tmp_path: Path) -> None:
    path = default_model_path()
    shipped = shipped_heads(path)
    assert shipped is not None
    for format in ("f16", "bf16", "q8_0", "q4_0"):
        other = str(tmp_path / f"renamed-{format}.gguf")
        requantise(path, other, format)
        assert fingerprint(other) == fingerprint(path)
        assert shipped_heads(other) == shipped


def test_shipped_heads_are_for_no_other_model(tiny_gguf: str) -> None:
    assert fingerprint(tiny_gguf) != fingerprint(default_model_path())
    assert shipped_heads(tiny_gguf) is None
