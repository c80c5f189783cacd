"""Heads of a small model, for the same model widened: they guess the same tokens.

A layer of shape [d, d] gets rows and columns of zeros. The first layer of a Hydra head, of shape [d, k d],
reads a state and k - 1 embeddings side by side, and each of its k blocks is padded by itself. The lm_head and
the embeddings are the widened model's own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # teaches numpy, and with it safetensors, the name bfloat16
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from common.atomic_write import atomic_path
from engine.llama.model import read_shape
from engine.medusa.layouts import TOKEN_MAP, HeadsLoadError
from engine.medusa.model_rows import FINGERPRINT, fingerprint

LAYER = re.compile(r"\d+\.\d+\.linear\.(weight|bias)")


def widen_heads(source: Path, target: Path, model: Path) -> None:
    """Write heads for the widened `model`, calibrated as those in `source` are.

    Raises HeadsLoadError for keys of another layout than that of `medusaq train-heads`, and OSError.
    """
    width = read_shape(str(model)).width
    with safe_open(source, framework="numpy") as file:
        metadata = dict(file.metadata() or {})
        tensors = {key: _widened(key, file.get_tensor(key), width) for key in file.keys()}  # noqa: SIM118
    metadata |= {"width": str(width), "base_model": model.name, FINGERPRINT: fingerprint(str(model))}
    metadata.pop("base_model_sha256", None)
    with atomic_path(target, durable=False) as part:
        save_file(tensors, part, metadata=metadata)


def _widened(key: str, values: NDArray[Any], width: int) -> NDArray[Any]:
    if key == TOKEN_MAP:
        return values
    if not LAYER.fullmatch(key):
        raise HeadsLoadError(f"weight {key!r} is of no layer, and how to widen it is not known")
    if values.ndim == 1:
        return _padded(values, (width,))
    rows, columns = values.shape
    blocks, rest = divmod(columns, rows)
    if rest:
        raise HeadsLoadError(f"{key} of shape {values.shape} does not read whole states")
    padded = _padded(values.reshape(rows, blocks, rows), (width, blocks, width))
    return padded.reshape(width, blocks * width)


def _padded(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    padded = np.zeros(shape, dtype=values.dtype)
    padded[tuple(map(slice, values.shape))] = values
    return padded
