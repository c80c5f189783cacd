"""Medusa heads: small networks that guess tokens beyond the next one from a single hidden state.

Tianle Cai et al. 2024, https://arxiv.org/abs/2401.10774. From the state that gave token t, head i (from 0)
guesses token t + 1 + i: layers x + SiLU(W x + b), then an lm_head. Names in files: engine/head_layouts.py.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

from engine.calibration import RANKS
from engine.head_layouts import (
    HeadsLoadError,
    Layout,
    files_of,
    first_line,
    keys_of_heads,
    read_config,
    recognise,
)

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
_Int8 = tuple[Tensor, Tensor]  # rows of weights, and the scale of each
INT8_LANES = 32  # torch's int8 product reads past rows whose width is no multiple of its vectors


class MedusaHeads:
    """Heads ready to run.

    draft_vocabulary: token ids of the lm_head's rows; None when it has all. metadata: of a safetensors
    file, what its writer said.
    """

    @classmethod
    def load(
        cls,
        path: str,
        *,
        width: int,
        vocab_size: int,
        lm_head: Callable[[Ids | None], Floats],
        threads: int = 0,
        dtype: torch.dtype = torch.bfloat16,
    ) -> MedusaHeads:
        """Heads from a file, or from a folder with one, for a model of this width and vocabulary.

        lm_head gives the model's rows of these token ids, or all: [ids, width]. threads: of torch, for
        the whole process; 0 leaves them. Raises HeadsLoadError. Nothing that the file says is executed.
        """
        try:
            file = HeadsFile(Path(path))
            heads = _build(file, width, vocab_size, lm_head, dtype)
        except HeadsLoadError as error:
            raise HeadsLoadError(f"{path}: {error.message}") from error
        if threads:
            torch.set_num_threads(threads)
        return heads

    def __init__(
        self,
        layers: list[tuple[Tensor, Tensor]],
        lm_heads: Tensor,
        draft_vocabulary: Ids | None = None,
        logit_scale: float = 1.0,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """layers: weights [heads, width, width], biases [heads, 1, width]; lm_heads [heads or 1, V, width]"""
        self.heads, self.layers, self.width = len(layers[0][0]), len(layers), lm_heads.shape[-1]
        self.draft_vocabulary = draft_vocabulary
        self.metadata = metadata or {}
        self._dtype, self._scale = lm_heads.dtype, logit_scale
        int8 = lm_heads.dtype is torch.bfloat16 and self.width % INT8_LANES == 0
        # Either these or those: the full ones need not stay.
        self._int8_lm_heads: list[_Int8] = []
        self._int8_layers: list[tuple[list[_Int8], Tensor]] = []
        if int8:
            self._int8_lm_heads = [_to_int8(rows) for rows in lm_heads]
            self._int8_layers = [([_to_int8(w) for w in weights], b) for weights, b in layers]
            self._layers, self._lm_heads = [], lm_heads[:0].clone()
        else:
            self._layers, self._lm_heads = layers, lm_heads

    def propose(self, hidden: Floats, heads: int, top: int, first: int = 0) -> tuple[Ids, Floats]:
        """The `top` likeliest tokens of heads first..heads-1 for states [R, width], best first.

        Token ids and probabilities, both [R, heads - first, top]; softmax is over the draft vocabulary.
        """
        with torch.inference_mode():
            states = self._states(torch.from_numpy(hidden), slice(first, heads))
            scores = self._logits(states, slice(first, heads))
            best, rows = scores.topk(top)
        # numpy from here on: for one row of a draft vocabulary, a call of torch takes longer than the sums.
        logits, ranked = scores.numpy(), best.numpy()
        most = ranked[..., :1]
        probabilities = np.exp(ranked - most) / np.exp(logits - most).sum(axis=-1, keepdims=True)
        tokens = rows.numpy().transpose(1, 0, 2)
        if self.draft_vocabulary is not None:
            tokens = self.draft_vocabulary[tokens]
        return tokens.astype(np.int32, copy=False), probabilities.transpose(1, 0, 2)

    def _states(self, hidden: Tensor, heads: slice) -> Tensor:
        """States [R, width] through the layers of these heads: [heads, R, width]."""
        if self._int8_layers:
            return torch.stack([self._state(hidden, head) for head in range(self.heads)[heads]])
        states = hidden.expand(len(range(self.heads)[heads]), *hidden.shape)
        for weights, biases in self._layers:
            rows = states.to(weights.dtype)
            states = states + F.silu(torch.baddbmm(biases[heads], rows, weights[heads].mT)).float()
        return states.to(self._dtype)

    def _state(self, states: Tensor, head: int) -> Tensor:
        """The same of one head, by int8 weights."""
        for weights, biases in self._int8_layers:
            rows = torch._weight_int8pack_mm(states.to(self._dtype), *weights[head])
            states = states + F.silu(rows.add_(biases[head]))
        return states.to(self._dtype)

    def _logits(self, states: Tensor, heads: slice) -> Tensor:
        """Float32 logits [heads, R, V]."""
        if len(self._int8_lm_heads) == 1:
            rows = torch._weight_int8pack_mm(states.reshape(-1, self.width), *self._int8_lm_heads[0])
            logits = rows.view(*states.shape[:-1], -1)
        elif self._int8_lm_heads:
            each = zip(states, self._int8_lm_heads[heads], strict=True)
            logits = torch.stack([torch._weight_int8pack_mm(rows, *lm_head) for rows, lm_head in each])
        elif len(self._lm_heads) == 1:
            logits = F.linear(states, self._lm_heads[0])
        else:
            logits = torch.bmm(states, self._lm_heads[heads].mT)
        return logits.float() * self._scale


def _to_int8(rows: Tensor) -> _Int8:
    """Rows of weights as int8 with a scale each: half the memory to read, which is what takes time."""
    scales = (rows.float().abs().amax(dim=1).clamp(min=1e-12) / 127).to(rows.dtype)
    return (rows.float() / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8), scales


class HeadsFile:
    """The weights of the heads, their layout, and what stands beside them. Raises HeadsLoadError."""

    def __init__(self, path: Path) -> None:
        self.config = read_config(path / "config.json") if path.is_dir() else {}
        self.metadata: dict[str, str] = {}
        self._tensors: dict[str, Tensor] = {}
        files = files_of(path)
        try:
            self._read(files)
        except HeadsLoadError:
            raise
        except pickle.UnpicklingError as error:
            raise HeadsLoadError("refused: its pickle is damaged or holds more than weights") from error
        except Exception as error:  # readers of damaged files raise anything
            raise HeadsLoadError(f"cannot be read: {first_line(error)}") from error
        if not all(isinstance(tensor, Tensor) for tensor in self._tensors.values()):
            raise HeadsLoadError("holds other things than weights by their names")
        self.layout: Layout = recognise(self._tensors)

    def _read(self, files: list[Path]) -> None:
        if files[0].suffix == ".safetensors":
            shards = {file: safe_open(file, framework="pt") for file in files}
            places = {key: shards[file] for key, file in _by_key(shards).items()}
            self._tensors = {key: places[key].get_tensor(key) for key in keys_of_heads(places)}
            for key in self._tensors:
                self.metadata |= places[key].metadata() or {}
        else:
            loaded = {
                file: torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
                for file in files
            }
            found = _by_key(loaded)
            self._tensors = {key: loaded[found[key]][key] for key in keys_of_heads(found)}

    def ids(self, key: str) -> NDArray[np.int64]:
        """A list of token ids."""
        tensor = self._tensors[key]
        if tensor.dim() != 1 or tensor.dtype not in (torch.int32, torch.int64) or not len(tensor):
            raise HeadsLoadError(f"{key} is no list of token ids")
        return tensor.numpy().astype(np.int64)

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._tensors[key].shape)

    def floats(self, key: str, shape: tuple[int, ...]) -> Tensor:
        """A weight, float32, of exactly this shape."""
        tensor = self._tensors[key]
        if tensor.shape != shape:
            raise HeadsLoadError(f"{key} has the shape {tuple(tensor.shape)} where {shape} is due")
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            raise HeadsLoadError(f"{key} holds no plain numbers, but {tensor.dtype}")
        tensor = tensor.float()
        if not tensor.isfinite().all():
            raise HeadsLoadError(f"{key} holds values that are not finite")
        return tensor


def _by_key(files: Mapping[Path, Any]) -> dict[str, Path]:
    """Which file holds a key. Raises HeadsLoadError when two do: then they are no parts of one."""
    found: dict[str, Path] = {}
    for file, content in files.items():
        for key in content.keys():  # noqa: SIM118
            if key in found:
                raise HeadsLoadError(
                    f"{found[key].name} and {file.name} both hold {key[:80]}: name one of them"
                )
            found[key] = file
    return found


def _build(
    file: HeadsFile, width: int, vocab_size: int, lm_head: Callable[[Ids | None], Floats], dtype: torch.dtype
) -> MedusaHeads:
    check_sizes(file, width, vocab_size)
    layers = []
    for pairs in zip(*file.layout.layers, strict=True):
        weights = [file.floats(weight, (width, width)).to(dtype) for weight, _ in pairs]
        biases = [file.floats(bias, (width,)) if bias else torch.zeros(width) for _, bias in pairs]
        layers.append((torch.stack(weights), torch.stack(biases).to(dtype)[:, None]))
    vocabulary = _draft_vocabulary(file, vocab_size)
    lm_heads = [
        own_lm_head(file, key, width, vocab_size, vocabulary).to(dtype) for key in file.layout.lm_heads
    ] or [_shared_lm_head(lm_head, width, vocab_size, vocabulary).to(dtype)]
    return MedusaHeads(
        layers, torch.stack(lm_heads), vocabulary, file.config.get("logit_scale", 1.0), file.metadata
    )


def check_sizes(file: HeadsFile, width: int, vocab_size: int) -> None:
    """Against the model, where the file or its config.json says what it is for. Raises HeadsLoadError."""
    shape = file.shape(file.layout.layers[0][0][0])
    hidden_size = shape[0] if len(shape) == 2 and shape[0] == shape[1] else width
    for made_for in (hidden_size, file.config.get("hidden_size", width)):
        if made_for != width:
            raise HeadsLoadError(f"for models of hidden size {made_for}, and this one has {width}")
    made_for = file.config.get("vocab_size", vocab_size)
    if made_for != vocab_size:
        raise HeadsLoadError(f"for a vocabulary of {made_for} tokens, and the model has {vocab_size}")
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


def own_lm_head(file: HeadsFile, key: str, width: int, vocab_size: int, vocabulary: Ids | None) -> Tensor:
    """The rows of a head's own lm_head for these tokens, or all; float32. Raises HeadsLoadError."""
    rows = file.shape(key)[:1]
    if vocabulary is not None and rows == (len(vocabulary),):
        return file.floats(key, (len(vocabulary), width))
    if rows != (vocab_size,):
        raise HeadsLoadError(
            f"{key} is for a vocabulary of {rows[0] if rows else 0} tokens, and the model has {vocab_size}"
        )
    full = file.floats(key, (vocab_size, width))
    return full if vocabulary is None else full[torch.from_numpy(vocabulary)]


def _shared_lm_head(
    lm_head: Callable[[Ids | None], Floats], width: int, vocab_size: int, vocabulary: Ids | None
) -> Tensor:
    rows, due = lm_head(vocabulary), (vocab_size if vocabulary is None else len(vocabulary), width)
    if rows.shape != due:
        raise HeadsLoadError(f"the model's lm_head has the shape {rows.shape} where {due} is due")
    return torch.from_numpy(rows)
