"""Reads what heads share with their model from its GGUF: the lm_head, and the embeddings of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from engine.llama.gguf_tensors import read_tensor
from engine.medusa.layouts import HeadsLoadError, first_line

OUTPUT, EMBEDDINGS = "output.weight", "token_embd.weight"  # a model without the first uses the second
FINAL_NORM = "output_norm.weight"
FINGERPRINT = "fingerprint"  # key in a heads file's metadata: that of its model


class ModelRows:
    """Rows of a model's matrices, dequantised: float32 [rows, width].

    Raises HeadsLoadError when the file holds no such matrix, or one that the gguf package cannot read.
    """

    def __init__(self, gguf_path: str) -> None:
        self._path = gguf_path

    def lm_head(self, ids: NDArray[np.int32] | None = None) -> NDArray[np.float32]:
        """Rows of these tokens, or of all."""
        return _tensor(self._path, (OUTPUT, EMBEDDINGS), ids)

    def embeddings(self) -> NDArray[np.float32]:
        """Of all tokens."""
        return _tensor(self._path, (EMBEDDINGS,))

    def embedding_blocks(self, rows: int) -> Iterator[NDArray[np.float32]]:
        """The same, so many rows at a time."""
        return _blocks(self._path, (EMBEDDINGS,), rows)


def fingerprint(gguf_path: str) -> str:
    """Identifies a model in any quantisation: a hash of its final norm's weights.

    Raises HeadsLoadError.
    """
    return hashlib.sha256(_tensor(gguf_path, (FINAL_NORM,)).tobytes()).hexdigest()


def _tensor(path: str, names: tuple[str, ...], ids: NDArray[np.int32] | None = None) -> NDArray[np.float32]:
    """These rows, or all, of the first of these that the file holds."""
    [block] = _blocks(path, names, None, ids)
    return block


def _blocks(
    path: str, names: tuple[str, ...], rows: int | None, ids: NDArray[np.int32] | None = None
) -> Iterator[NDArray[np.float32]]:
    """The same, so many rows at a time, or at once. Opened once: that reads the whole vocabulary."""
    try:
        from gguf import GGMLQuantizationType, dequantize
    except ImportError as error:
        raise HeadsLoadError("draft heads need the package gguf: pip install 'medusaq[medusa]'") from error
    try:
        if tensor := read_tensor(path, names):
            data = tensor.data if ids is None else tensor.data[ids]
            for first in range(0, len(data), rows or len(data)):
                some = data[first:][:rows]
                yield np.array(dequantize(some, GGMLQuantizationType(tensor.type)), dtype=np.float32)
            return
    except Exception as error:  # the reader trusts the file, so that damage shows as any error
        raise HeadsLoadError(f"{path}: {names[0]} cannot be read: {first_line(error)}") from error
    raise HeadsLoadError(f"{path}: holds no {' or '.join(names)}")
