"""Which backend runs heads: the one that is asked for, or the faster one, as measured once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.head_backends import KEPT, Loaded, load_heads, modules_for
from engine.head_layouts import HeadsLoadError
from engine.heads import MedusaHeads
from engine.measured import cache_folder
from engine.onnx_heads import OnnxHeads
from tests.engine.test_heads import VOCAB, WIDTH, lm_head, medusa, write
from tests.engine.test_onnx_heads import written
from tests.workers import ROOT

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


def test_what_loading_imports_is_told_beforehand(path: Path) -> None:
    def told(**options: object) -> set[str]:
        return modules_for(str(path), width=WIDTH, vocab_size=VOCAB, **{"threads": 2, **options})  # type: ignore[arg-type]

    assert told() == {"torch", "onnxruntime"}, "both are timed"
    loaded(path)
    [file] = kept()
    file.write_text(json.dumps({"fastest": "onnx on 2 threads"}))
    assert told() == {"onnxruntime"}
    assert told(threads=1) == {"torch", "onnxruntime"}
    assert told(backend="torch") == {"torch"}


LOAD = f"""
import sys
from engine.head_backends import load_heads
heads = load_heads(sys.argv[1], width={WIDTH}, vocab_size={VOCAB}, lm_head=None, threads=2)
print(heads.backend, "torch" in sys.modules)
"""


def test_what_is_not_used_is_not_imported(path: Path) -> None:
    loaded(path)
    [file] = kept()
    for name in WAYS:
        file.write_text(json.dumps({"fastest": name}))
        said = subprocess.check_output([sys.executable, "-c", LOAD, str(path)], cwd=ROOT, text=True)
        assert said == f"{name} {name.startswith('torch')}\n"


def test_a_backend_that_cannot_be_imported_leaves_the_other(path: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise ImportError('libgomp.so.1: cannot open')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'broken')!r})\n{LOAD}"
    said = subprocess.check_output([sys.executable, "-c", code, str(path)], cwd=ROOT, text=True)
    assert said.startswith("onnx on ")


def test_the_one_that_is_asked_for(path: Path) -> None:
    assert isinstance(loaded(path, "torch").heads, MedusaHeads)
    assert not kept()
    onnx = loaded(path, "onnx")
    assert isinstance(onnx.heads, OnnxHeads)
    assert onnx.backend.startswith("onnx on ")


def test_heads_beyond_what_onnx_holds_are_run_by_torch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.onnx_graph.LARGEST_BYTES", 1000)
    assert loaded(path).backend == "torch on 2 threads"
    with pytest.raises(HeadsLoadError, match="2 are the most"):
        loaded(path, "onnx")


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
