"""Heads, and engines without heads, where packages are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.llama.model import default_model_path
from engine.medusa.onnx.export import export
from engine.speculative.setup import shipped_heads
from tests.engine.helpers.torch_heads import medusa, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


def without(modules: list[str], code: str, *arguments: str) -> str:
    """What this code prints in an interpreter that has none of these modules."""
    script = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


DRAFT = """
from engine import Decoding, EngineConfig, EngineService, Request, SamplingParams
service = EngineService(EngineConfig(slots=2, kv_cells=512, weights="as_shipped", heads=sys.argv[1] or None))
sampling = SamplingParams(max_tokens=16)
request = Request(id="a", prompt="Count to ten.", sampling=sampling, decoding=Decoding.MEDUSA)
done = service.submit(request).result()
print(done.drafted["medusa"].verified > 0, len(done.tokens))
service.close()
"""


def test_the_packaged_heads_need_no_torch() -> None:
    assert without(["torch"], DRAFT, "") == "True 16"


def test_an_exported_file_needs_neither_torch_nor_what_wrote_it(tmp_path: Path) -> None:
    out, shipped = tmp_path / "heads.onnx", shipped_heads(default_model_path())
    export(str(shipped), out, default_model_path(), 4)
    assert without(["torch", "onnx"], DRAFT, str(out)) == "True 16"


LOAD = """
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.loader import load_heads
try:
    print(load_heads(sys.argv[1], width=24, vocab_size=90, model_rows=None).heads, "torch" in sys.modules)
except HeadsLoadError as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    ("missing", "name", "said"),
    [
        ([], "heads.safetensors", "3 False"),
        ([], "heads.pt", "3 True"),
        (["torch"], "heads.safetensors", "3 True"),
        (["onnxruntime"], "heads.safetensors", "need onnxruntime: pip install 'medusaq[medusa]'"),
        (["onnxruntime"], "heads.pt", "need onnxruntime: pip install 'medusaq[medusa]'"),
        (["torch"], "heads.pt", "a pickle, which only torch reads: pip install 'medusaq[train]'"),
        (["torch", "onnx"], "heads.safetensors", "needs onnx: pip install 'medusaq[medusa]'"),
    ],
)
def test_missing_packages_are_named(tmp_path: Path, missing: list[str], name: str, said: str) -> None:
    path = write(tmp_path / name, medusa(1, True).state_dict())
    assert said in without(missing, LOAD, str(path))


PLAIN = """
from engine import EngineConfig, EngineService, Request, SamplingParams
service = EngineService(EngineConfig(slots=2, kv_cells=512, weights="as_shipped"))
done = service.submit(Request(id="a", prompt="Count to ten.", sampling=SamplingParams(max_tokens=4))).result()
print(*service.info.draft_sources, len(done.tokens))
service.close()
"""


def test_an_engine_without_the_packages_of_heads_drafts_without_heads() -> None:
    assert without(["gguf", "ml_dtypes", "onnx", "onnxruntime", "safetensors"], PLAIN) == "grammar lookup 4"
    assert without(["ml_dtypes"], PLAIN) == "grammar lookup 4"


def test_a_runtime_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.safetensors", medusa(1, True).state_dict())
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libgomp.so.1: cannot open')")
    said = without([], f"sys.path.insert(0, {str(tmp_path)!r})\n{LOAD}", str(path))
    assert said == "onnxruntime is installed and cannot be imported: libgomp.so.1: cannot open"
