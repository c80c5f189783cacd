"""Medusa heads, run by torch: networks that guess tokens beyond the next one from a single hidden state.

Tianle Cai et al. 2024, https://arxiv.org/abs/2401.10774. From the state that gave token t, head i (from 0)
guesses token t + 1 + i: layers x + SiLU(W x + b), then an lm_head. Names in files: engine/head_layouts.py.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.head_weights import Floats, HeadWeights, Ids, LmHead, naming

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
        lm_head: LmHead,
        threads: int = 0,
        dtype: torch.dtype = torch.bfloat16,
    ) -> MedusaHeads:
        """Heads from a file, or from a folder with one, for a model of this width and vocabulary.

        lm_head gives the model's rows of these token ids, or all: [ids, width]. threads: of torch, for
        the whole process; 0 leaves them. Raises HeadsLoadError. Nothing that the file says is executed.
        """
        with naming(path):
            heads = cls._of(HeadWeights(path, width, vocab_size, lm_head), dtype)
        if threads:
            torch.set_num_threads(threads)
        return heads

    @classmethod
    def _of(cls, weights: HeadWeights, dtype: torch.dtype) -> MedusaHeads:
        layers = []
        for layer in range(weights.layers):
            pairs = [weights.layer(head, layer) for head in range(weights.heads)]
            matrices = [torch.tensor(weight, dtype=dtype) for weight, _ in pairs]
            biases = [torch.tensor(bias, dtype=dtype) for _, bias in pairs]
            layers.append((torch.stack(matrices), torch.stack(biases)[:, None]))
        lm_heads = [torch.tensor(weights.lm_head(head), dtype=dtype) for head in range(weights.lm_heads)]
        return cls(
            layers, torch.stack(lm_heads), weights.draft_vocabulary, weights.logit_scale, weights.metadata
        )

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
