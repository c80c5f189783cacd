"""Cuts full heads to a draft vocabulary without training: keeps the rows of frequent tokens in each lm_head.

Full lm_heads are most of the cost of heads on a CPU. A token without a row is never drafted, which lowers the
acceptance rate and does not change results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.host.file_digest import sha256
from engine.llama.model import Model, Tokens, read_shape
from engine.medusa.calibration import RANKS
from engine.medusa.layouts import HeadsLoadError, files_of
from engine.medusa.model_rows import FINGERPRINT, ModelRows, fingerprint
from engine.medusa.weights import HeadWeights, naming
from training.base.errors import PromptsError, TrainingError
from training.heads import heads_file
from training.heads.token_ranking import composed_texts, count_tokens, ranked, read_texts

DEFAULT_TOKENS = 8192  # a quarter of Llama's vocabulary; the other tokens are rare


@dataclass(frozen=True, slots=True)
class Sliced:
    """The result: `tokens` of vocab_size are kept. coverage: their share of the counted text."""

    heads: int
    tokens: int
    vocab_size: int
    coverage: float


def slice_heads(
    heads: Path,
    model: str,
    output: Path,
    *,
    tokens: int = DEFAULT_TOKENS,
    texts: Sequence[Path] = (),
    source: str | None = None,
) -> Sliced:
    """Write the heads of a file or folder, cut to the most frequent tokens of the texts.

    model: the GGUF that the heads are for, whose tokenizer is used. texts: files; if empty, composed prompts.
    source: the heads' name for the metadata. Raises ModelLoadError, HeadsLoadError or TrainingError.
    """
    heads_file.check_writable(output)
    shape = read_shape(model)
    if not RANKS <= tokens <= shape.vocab_size:
        raise TrainingError(
            f"a draft vocabulary of {tokens} tokens is not possible: the model has {shape.vocab_size}, and "
            f"{RANKS} is the minimum"
        )
    with naming(str(heads)):
        full = HeadWeights(str(heads), shape.width, shape.vocab_size, ModelRows(model))
        _refuse_sliced(full)
    vocabulary = Model(model, gpu_layers=0, vocabulary_only=True)
    counts = count_tokens(vocabulary, read_texts(texts) if texts else composed_texts())
    if not counts.any():
        raise PromptsError("the texts hold no token")
    kept = ranked(vocabulary, counts)[:tokens]
    coverage = float(counts[kept].sum() / counts.sum())
    metadata = {
        "format": "medusaq heads",
        "source": source or heads.name,
        "source_sha256": {path.name: sha256(path) for path in files_of(heads)},
        "base_model": Path(model).name,
        FINGERPRINT: fingerprint(model),
        "width": str(shape.width),
        "vocab_size": str(shape.vocab_size),
        "draft_vocabulary": {
            "text": [path.name for path in texts] or "composed prompts",
            "counted_tokens": int(counts.sum()),
            "seen": int(np.count_nonzero(counts)),
            "kept": tokens,
            "coverage": round(coverage, 4),
        },
    }
    with naming(str(heads)):
        weights = _weights(full, kept)
    heads_file.write_tensors(output, weights, kept, metadata)
    return Sliced(full.heads, tokens, shape.vocab_size, coverage)


def _refuse_sliced(full: HeadWeights) -> None:
    if full.draft_vocabulary is not None:
        cut = f"cut to {full.rows} of {full.vocab_size} tokens already"
        raise HeadsLoadError(f"{cut}: slice the full heads")
    if full.logit_scale != 1.0 and not full.has_own_lm_heads:
        raise HeadsLoadError("has a logit_scale but no lm_head of its own, which could take it over")


def _weights(full: HeadWeights, kept: Tokens) -> dict[str, Tensor]:
    """Weights under vLLM's keys, whose layout has draft vocabularies; bf16 halves the memory of float32."""
    weights = {}
    for head in range(full.heads):
        for layer in range(full.layers):
            matrix, bias = full.layer(head, layer)
            key = f"blocks.{head}.layers.{layer}"
            weights[f"{key}.weight"] = torch.from_numpy(matrix).bfloat16()
            weights[f"{key}.bias"] = torch.from_numpy(bias).bfloat16()
    for head in range(full.lm_heads if full.has_own_lm_heads else 0):
        rows = full.lm_head(head)[kept] * np.float32(full.logit_scale)
        weights[f"lm_heads.{head}.weight"] = torch.from_numpy(rows).bfloat16()
    return weights
