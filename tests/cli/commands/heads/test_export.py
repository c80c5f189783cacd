"""`medusaq export-heads` as a person runs it, and what it says when it cannot."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.llama.model import default_model_path
from engine.medusa.onnx.heads import OnnxHeads
from engine.speculative.setup import shipped_heads
from tests.cli.helpers.in_process import InProcessCli

ROOT = Path(__file__).parents[4]


def run(*arguments: object, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """without: modules that are not installed."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({without!r}))"
    code = f"{hidden}; sys.argv[0] = 'medusaq'; from cli.main import main; main()"
    command = [sys.executable, "-c", code, "export-heads", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def refused(in_process: InProcessCli) -> Callable[..., None]:
    def ask(code: int, said: str, *arguments: object) -> None:
        ended = in_process("export-heads", *arguments)
        assert ended.returncode == code, ended.stderr
        assert said in ended.stderr
        assert ended.stderr.count("\n") == 1

    return ask


@pytest.fixture(scope="module")
def shipped() -> Path:
    path = shipped_heads(default_model_path())
    assert path
    return path


@pytest.mark.slow
def test_the_packaged_heads(shipped: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads.onnx"
    ended = run(shipped, "--onnx", out, "--bits", 4, without=("torch",))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{out}: 4 heads over 6144 tokens in 4 bits, ")
    content = out.read_bytes()
    heads = OnnxHeads(content, width=576, vocab_size=49152)
    assert (heads.heads, heads.bits) == (4, 4)
    assert "calibration" in heads.metadata
    assert [path.name for path in tmp_path.iterdir()] == ["heads.onnx"]


def test_what_is_refused(shipped: Path, tiny: Path, tmp_path: Path, refused: Callable[..., None]) -> None:
    out = tmp_path / "heads.onnx"
    refused(2, "--bits: must be 8 or 4, not 5", shipped, "--onnx", out, "--bits", 5)
    refused(2, f"{tmp_path} is a folder", shipped, "--onnx", tmp_path)
    refused(2, "does not exist", shipped, "--onnx", tmp_path / "none" / "heads.onnx")
    refused(2, "must end in .onnx", shipped, "--onnx", tmp_path / "heads.bin")
    refused(2, "no such file or folder", tmp_path / "heads.pt", "--onnx", out)
    refused(2, "for models of hidden size 576, and this one has 64", shipped, "--onnx", out, "--model", tiny)
    refused(3, "none.gguf", shipped, "--onnx", out, "--model", tmp_path / "none.gguf")
    assert not out.exists()


@pytest.mark.parametrize("module", ["onnx", "onnxruntime", "llama_cpp"])
@pytest.mark.slow
def test_without_its_packages_it_says_how_to_get_them(shipped: Path, tmp_path: Path, module: str) -> None:
    """In a process that has loaded none of them."""
    out = tmp_path / "heads.onnx"
    ended = run(shipped, "--onnx", out, without=(module,))
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: exporting needs {module}: pip install")
    assert ended.stderr.count("\n") == 1
    assert not out.exists()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.engine.helpers.tiny import write_tiny_gguf

    return Path(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf"))


def test_a_target_that_cannot_be_written(shipped: Path, refused: Callable[..., None]) -> None:
    refused(1, "cannot write /proc/heads.onnx: ", shipped, "--onnx", "/proc/heads.onnx")
