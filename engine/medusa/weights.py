"""The weights of heads, independent of the runtime, checked against their model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.medusa.calibration import RANKS
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.model_rows import ModelRows
from engine.medusa.reader import HeadsFile

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


class HeadWeights:
    """Weights and sizes of heads, float32.

    draft_vocabulary: token ids of the lm_heads' rows; None when they have all. lm_heads: how many; one
    serves all heads. sees_path: Hydra heads, whose first layers read [state, embedding of the token that the
    state gave, embeddings of the draft tokens before the head's own]. metadata: of a safetensors file, what
    its writer said.
    """

    def __init__(self, path: str, width: int, vocab_size: int, model_rows: ModelRows) -> None:
        """From a file or a folder with one. Raises HeadsLoadError, which does not name the file."""
        self._file, self._model_rows = HeadsFile(Path(path)), model_rows
        self.width, self.vocab_size = width, vocab_size
        layout = self._file.layout
        self.heads, self.layers = len(layout.layers), len(layout.layers[0])
        self.sees_path = self._file.shape(layout.layers[0][0][0]) == (width, 2 * width)
        self.lm_heads = len(layout.lm_heads) or 1
        check_sizes(self._file, width, vocab_size)
        self.logit_scale = float(self._file.config.get("logit_scale", 1.0))
        self.metadata = self._file.metadata
        self.draft_vocabulary = _draft_vocabulary(self._file, vocab_size)

    @property
    def rows(self) -> int:
        """Of each lm_head: the tokens that heads can guess."""
        return self.vocab_size if self.draft_vocabulary is None else len(self.draft_vocabulary)

    @property
    def has_own_lm_heads(self) -> bool:
        """False if the heads share the model's lm_head."""
        return bool(self._file.layout.lm_heads)

    def inputs(self, head: int, layer: int) -> int:
        """Width of what a layer reads."""
        return (2 + head if self.sees_path and layer == 0 else 1) * self.width

    def layer(self, head: int, layer: int) -> tuple[Floats, Floats]:
        """Weight [width, inputs] and bias [width]. Raises HeadsLoadError, as lm_head() does."""
        weight, bias = self._file.layout.layers[head][layer]
        width = self.width
        return self._file.floats(weight, (width, self.inputs(head, layer))), (
            self._file.floats(bias, (width,)) if bias else np.zeros(width, dtype=np.float32)
        )

    def lm_head(self, head: int) -> Floats:
        """[rows, width]; head is below lm_heads."""
        keys = self._file.layout.lm_heads
        if not keys:
            return self._shared_lm_head()
        return own_lm_head(self._file, keys[head], self.width, self.vocab_size, self.draft_vocabulary)

    def embedding_blocks(self, rows: int) -> Iterator[Floats]:
        """The model's token embeddings, so many rows at a time: [rows, width]."""
        given = 0
        for block in self._model_rows.embedding_blocks(rows):
            given += len(block)
            yield block
        _check_shape((given, block.shape[1]), (self.vocab_size, self.width), "token embeddings")

    def _shared_lm_head(self) -> Floats:
        rows = self._model_rows.lm_head(self.draft_vocabulary)
        _check_shape(rows.shape, (self.rows, self.width), "lm_head")
        return rows


def _check_shape(shape: tuple[int, ...], due: tuple[int, int], name: str) -> None:
    if shape != due:
        raise HeadsLoadError(f"the model's {name} has the shape {shape} where {due} is due")


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Prefix the message of a HeadsLoadError with the file's path."""
    try:
        yield
    except HeadsLoadError as error:
        raise HeadsLoadError(f"{path}: {error.message}") from error


def check_made_for(width: int, vocab_size: int, *, hidden_size: int, vocabulary: int) -> None:
    """hidden_size and vocabulary: of the models that the heads are for. Raises HeadsLoadError."""
    if hidden_size != width:
        raise HeadsLoadError(f"for models of hidden size {hidden_size}, and this one has {width}")
    if vocabulary != vocab_size:
        raise HeadsLoadError(f"for a vocabulary of {vocabulary} tokens, and the model has {vocab_size}")


def own_lm_head(file: HeadsFile, key: str, width: int, vocab_size: int, vocabulary: Ids | None) -> Floats:
    """The rows of a head's own lm_head for these tokens, or all: [rows, width]. Raises HeadsLoadError."""
    rows = file.shape(key)[:1]
    if vocabulary is not None and rows == (len(vocabulary),):
        return file.floats(key, (len(vocabulary), width))
    if rows != (vocab_size,):
        found = rows[0] if rows else 0
        raise HeadsLoadError(f"{key} is for a vocabulary of {found} tokens, and the model has {vocab_size}")
    full = file.floats(key, (vocab_size, width))
    return full if vocabulary is None else full[vocabulary]


def check_sizes(file: HeadsFile, width: int, vocab_size: int) -> None:
    """Against the model, where the file or its config.json says what it is for. Raises HeadsLoadError."""
    shape = file.shape(file.layout.layers[0][0][0])
    hidden_size = shape[0] if len(shape) == 2 and shape[1] in (shape[0], 2 * shape[0]) else width
    for made_for in (hidden_size, file.config.get("hidden_size", width)):
        check_made_for(
            width, vocab_size, hidden_size=made_for, vocabulary=file.config.get("vocab_size", vocab_size)
        )
    if not isinstance(file.config.get("logit_scale", 1.0), int | float):
        raise HeadsLoadError("logit_scale in config.json is no number")


def _draft_vocabulary(file: HeadsFile, vocab_size: int) -> Ids | None:
    truncated = file.config.get("truncated_vocab_size", vocab_size)
    key = file.layout.token_map
    if key is None:
        if truncated != vocab_size:
            raise HeadsLoadError(f"no token_map, though its vocabulary is cut to {truncated} of {vocab_size}")
        return None
    ids = file.ids(key)
    if "truncated_vocab_size" in file.config and truncated != len(ids):
        raise HeadsLoadError(
            f"its token_map names {len(ids)} tokens, and truncated_vocab_size is {truncated}"
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        worst = ids.min() if ids.min() < 0 else ids.max()
        raise HeadsLoadError(f"its token_map names token {worst}, and the model has {vocab_size}")
    if len(np.unique(ids)) < len(ids):
        raise HeadsLoadError("its token_map names a token twice")
    if len(ids) < RANKS:
        raise HeadsLoadError(f"its token_map names {len(ids)} tokens, and {RANKS} is the least")
    return ids.astype(np.int32)
