"""Writing heads: one safetensors file, whole or not at all, whose metadata says where they come from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from engine.head_layouts import TOKEN_MAP
from training.errors import TrainingError
from training.network import DraftHeads


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
    part = _part(path)
    try:
        save_file(tensors, part, metadata=texts)
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot write {path}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raises TrainingError when write() could not even begin."""
    try:
        _part(path).touch()
        _part(path).unlink()
    except OSError as error:
        raise TrainingError(f"cannot write {path}: {error.strerror}") from error


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")
