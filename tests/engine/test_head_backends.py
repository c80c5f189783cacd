"""Which backend runs heads: the one that is asked for, or the faster one, as measured once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.head_backends import KEPT, Loaded, load_heads
from engine.head_layouts import HeadsLoadError
from engine.heads import MedusaHeads
from engine.measured import cache_folder
from engine.onnx_heads import OnnxHeads
from tests.engine.test_heads import VOCAB, WIDTH, lm_head, medusa, write
from tests.engine.test_onnx_heads import written

WAYS = {"onnx on 1 thread", "onnx on 2 threads", "torch on 2 threads"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "heads.safetensors", medusa(1, own_lm_head=True).state_dict())


def loaded(path: Path, backend: str = "auto", threads: int = 2) -> Loaded:
    return load_heads(
        str(path), width=WIDTH, vocab_size=VOCAB, lm_head=lm_head, backend=backend, threads=threads
    )


def kept() -> list[Path]:
    return sorted(cache_folder().glob(f"{KEPT}-*.json"))


def test_the_faster_one_is_taken_and_remembered(path: Path) -> None:
    first = loaded(path)
    [file] = kept()
    measured = json.loads(file.read_text())
    assert set(measured["seconds"]) == WAYS
    assert first.backend == min(WAYS, key=lambda name: measured["seconds"][name])
    kinds = {"torch on 2 threads": MedusaHeads}
    for name in WAYS:
        file.write_text(json.dumps(measured | {"fastest": name}))
        again = loaded(path)
        assert again.backend == name
        assert isinstance(again.heads, kinds.get(name, OnnxHeads))


@pytest.mark.parametrize("content", ["{", '{"fastest": "abacus"}', '{"seconds": 1}'])
def test_what_was_kept_and_is_of_no_use_is_measured_again(path: Path, content: str) -> None:
    loaded(path)
    [file] = kept()
    file.write_text(content)
    assert loaded(path).backend in WAYS
    assert set(json.loads(file.read_text())["seconds"]) == WAYS


def test_it_is_measured_anew_for_another_file_and_other_threads(path: Path) -> None:
    loaded(path)
    loaded(path, threads=1)
    assert len(kept()) == 2
    os.utime(path, (1, 1))
    loaded(path)
    assert len(kept()) == 3


def test_the_one_that_is_asked_for(path: Path) -> None:
    assert isinstance(loaded(path, "torch").heads, MedusaHeads)
    assert not kept()
    onnx = loaded(path, "onnx")
    assert isinstance(onnx.heads, OnnxHeads)
    assert onnx.backend.startswith("onnx on ")


def test_a_written_file_is_for_onnx_alone(path: Path, tmp_path: Path) -> None:
    exported = written(path, tmp_path / "heads.onnx")
    assert isinstance(loaded(exported).heads, OnnxHeads)
    assert isinstance(loaded(exported, threads=1).heads, OnnxHeads)
    with pytest.raises(HeadsLoadError, match="torch does not run ONNX files; MEDUSAQ_HEADS_BACKEND=onnx"):
        loaded(exported, "torch")


@pytest.mark.parametrize("backend", ["auto", "onnx", "torch"])
def test_no_file(tmp_path: Path, backend: str) -> None:
    with pytest.raises(HeadsLoadError, match=r"heads\.safetensors: no such file or folder"):
        loaded(tmp_path / "heads.safetensors", backend)
