"""Loads draft heads into ONNX Runtime, from an ONNX file or from weights, which are converted in memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from engine.medusa.layouts import HeadsLoadError
from engine.medusa.onnx.format import SUFFIX

if TYPE_CHECKING:
    from engine.medusa.model_rows import ModelRows
    from engine.medusa.onnx.heads import OnnxHeads


def load_heads(
    path: str, *, width: int, vocab_size: int, model_rows: ModelRows, threads: int = 1, bits: int = 8
) -> OnnxHeads:
    """Heads from a file, or from a folder with one, for a model of this width and vocabulary.

    model_rows: of that model; an ONNX file has its own, and its own bits. Raises HeadsLoadError. Nothing
    that the file says is executed.
    """
    check_runtime()
    try:  # not above: the engine runs without the packages of heads
        from engine.medusa.onnx.heads import OnnxHeads
        from engine.medusa.weights import naming
    except ModuleNotFoundError as error:
        raise HeadsLoadError(f"draft heads need {error.name}: pip install 'medusaq[medusa]'") from error
    except ImportError as error:
        raise HeadsLoadError(f"onnxruntime is installed and cannot be imported: {error}") from error
    with naming(path):
        content = _content(path, width, vocab_size, model_rows, bits)
        return OnnxHeads(content, width=width, vocab_size=vocab_size, threads=threads)


def check_runtime() -> None:
    """Not imported, which takes its time and memory. Raises HeadsLoadError when it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise HeadsLoadError("draft heads need onnxruntime: pip install 'medusaq[medusa]'")


def _content(path: str, width: int, vocab_size: int, model_rows: ModelRows, bits: int) -> bytes:
    """An ONNX file's content: the file's own, or built from the weights in it. Raises HeadsLoadError."""
    if Path(path).suffix == SUFFIX:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise HeadsLoadError(f"cannot be read: {error.strerror}") from error
    from engine.medusa.weights import HeadWeights

    weights = HeadWeights(path, width, vocab_size, model_rows)
    try:
        from engine.medusa.onnx.graph import build
    except ImportError as error:
        raise HeadsLoadError(f"needs {error.name}: pip install 'medusaq[medusa]'") from error
    return build(weights, bits)
