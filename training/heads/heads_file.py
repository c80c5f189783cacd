"""Writes heads atomically to one safetensors file, whose metadata says what they were made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from common import atomic_write
from engine.medusa.layouts import TOKEN_MAP
from training.base.errors import TrainingError
from training.heads.network import DraftHeads


def write(
    path: Path, network: DraftHeads, vocabulary: NDArray[np.int32], metadata: Mapping[str, object]
) -> None:
    """Write trained heads. Raises TrainingError if the file cannot be written."""
    write_tensors(path, network.weights(), vocabulary, metadata)


def write_tensors(
    path: Path, weights: Mapping[str, Tensor], vocabulary: NDArray[np.int32], metadata: Mapping[str, object]
) -> None:
    """Write weights in bf16, in which the engine computes. Raises TrainingError if that fails."""
    tensors = {key: tensor.to("cpu", torch.bfloat16).contiguous() for key, tensor in weights.items()}
    tensors[TOKEN_MAP] = torch.from_numpy(np.ascontiguousarray(vocabulary, dtype=np.int32))
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    try:
        with atomic_write.atomic_path(path, durable=True) as part:
            save_file(tensors, part, metadata=texts)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot write {path}: {error}") from error


def read_into(network: DraftHeads, path: Path) -> None:
    """Give a network the weights of a file. Its draft vocabulary is not read. Raises TrainingError."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot read {path}: {error}") from error
    tensors.pop(TOKEN_MAP, None)
    try:
        network.load_weights(tensors)
    except RuntimeError as error:  # names or shapes differ
        raise TrainingError(f"{path}: these heads differ in width, kind, number or layers") from error


def metadata(path: Path) -> dict[str, str]:
    """What a file says of its heads, empty for files of others. Raises TrainingError."""
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot read {path}: {error}") from error


def check_writable(path: Path) -> None:
    """Raises TrainingError if the target's folder does not allow a write."""
    try:
        atomic_write.check_writable(path)
    except OSError as error:
        raise TrainingError(f"cannot write {path}: {error.strerror}") from error
