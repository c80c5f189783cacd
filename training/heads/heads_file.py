"""Writing heads: one safetensors file, whole or not at all, whose metadata says where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from common import atomic_write
from engine.medusa.layouts import TOKEN_MAP
from training.base.errors import TrainingError
from training.heads.network import DraftHeads


def write(
    path: Path, network: DraftHeads, vocabulary: NDArray[np.int32], metadata: Mapping[str, object]
) -> None:
    """Of trained heads. Raises TrainingError when the file cannot be written."""
    write_tensors(path, network.state_dict(), vocabulary, metadata)


def write_tensors(
    path: Path, weights: Mapping[str, Tensor], vocabulary: NDArray[np.int32], metadata: Mapping[str, object]
) -> None:
    """bf16, the format that the engine computes in. Raises TrainingError when it cannot be written."""
    tensors = {key: tensor.to("cpu", torch.bfloat16).contiguous() for key, tensor in weights.items()}
    tensors[TOKEN_MAP] = torch.from_numpy(np.ascontiguousarray(vocabulary, dtype=np.int32))
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    try:
        with atomic_write.atomic_path(path, durable=True) as part:
            save_file(tensors, part, metadata=texts)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot write {path}: {error}") from error


def check_writable(path: Path) -> None:
    """Raises TrainingError when write() could not even begin."""
    try:
        atomic_write.check_writable(path)
    except OSError as error:
        raise TrainingError(f"cannot write {path}: {error.strerror}") from error
