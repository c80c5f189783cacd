"""Heads written as one ONNX file, which holds all that serving them needs."""

from __future__ import annotations

from pathlib import Path

from common.atomic_write import atomic_write
from engine.llama.model import read_shape
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.model_rows import FINGERPRINT, ModelRows, fingerprint
from engine.medusa.onnx.format import SUFFIX
from engine.medusa.onnx.graph import build
from engine.medusa.onnx.heads import OnnxHeads
from engine.medusa.weights import HeadWeights, naming


def export(heads: str, out: Path, model: str, bits: int) -> str:
    """Write the heads of a file or folder, for this GGUF; returns in a few words what was written.

    The file appears whole, after it was loaded and run. Raises HeadsLoadError, ModelLoadError, OSError.
    """
    shape = read_shape(model)
    with naming(heads):
        if Path(heads).suffix == SUFFIX:
            raise HeadsLoadError("is ONNX already: export from the file that it was made of")
        weights = HeadWeights(heads, shape.width, shape.vocab_size, ModelRows(model))
        weights.metadata.setdefault(FINGERPRINT, fingerprint(model))
        content = build(weights, bits)
        OnnxHeads(content, width=shape.width, vocab_size=shape.vocab_size)
    atomic_write(out, content, durable=True)
    return f"{weights.heads} heads over {weights.rows} tokens in {bits} bits, {len(content) / 1e6:.1f} MB"
