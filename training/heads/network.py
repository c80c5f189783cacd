"""The heads as a torch module: layers x + SiLU(W x + b), then the model's own lm_head, frozen.

The first layer of a Hydra head (Zachary Ankner et al. 2024, https://arxiv.org/abs/2402.05109) reads further
inputs: the embeddings of the token that the state gave, and of those between it and the head's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

CHUNK_LOGITS = 1 << 21  # logits computed at a time on a CPU: their 8 MiB stay in its caches


class Layer(nn.Module):
    """x + SiLU(W [x, further inputs] + b), initialized to the identity of x."""

    def __init__(self, width: int, inputs: int) -> None:
        """inputs: width of x and the further inputs together."""
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, : self.linear.out_features] + F.silu(self.linear(inputs))


class DraftHeads(nn.ModuleList):
    """Heads over a shared lm_head; the keys of the state_dict are those of a heads file.

    Each maps inputs [n, width], or [n, (2 + head) width] if it sees the path, to inputs of the lm_head. They
    are initialized to the identity, so that each first predicts the model's own next token. They share no
    weights, and are trained independently.
    """

    def __init__(
        self, heads: int, layers: int, width: int, embeddings: Tensor | None = None, scale: float = 1.0
    ) -> None:
        """embeddings [vocab, width]: the model's, for heads that see the path, which read them times
        `scale`."""
        super().__init__(
            nn.Sequential(
                *(
                    Layer(width, width if layer or embeddings is None else (2 + head) * width)
                    for layer in range(layers)
                )
            )
            for head in range(heads)
        )
        self.width, self.scale = width, scale
        self._embeddings = None if embeddings is None else (embeddings * scale).to(torch.bfloat16)

    @property
    def sees_path(self) -> bool:
        return self._embeddings is not None

    def run(self, head: int, states: Tensor, path: Tensor) -> Tensor:
        """Inputs of the lm_head. states [n, width]; path int64 [n, 1 + head]: the token that each state gave,
        and those between it and the head's own."""
        if self._embeddings is None:
            return self[head](states)  # type: ignore[no-any-return]
        above = self._embeddings[path].to(states.dtype).flatten(1)
        return self[head](torch.cat([states, above], dim=1))  # type: ignore[no-any-return]

    def weights(self) -> dict[str, Tensor]:
        """The state_dict for inputs that are not scaled."""
        return self._scaled(self.state_dict(), self.scale)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take the result of `weights`, as a file has it. Raises RuntimeError if names or shapes differ."""
        found = {key: tensor.float() for key, tensor in weights.items()}
        self.load_state_dict(self._scaled(found, 1 / self.scale))

    def _scaled(self, weights: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
        """With the columns that read embeddings multiplied by `factor`."""
        if not self.sees_path:
            return weights
        return {
            key: torch.cat([tensor[:, : self.width], tensor[:, self.width :] * factor], dim=1)
            if key.endswith(".0.linear.weight")
            else tensor
            for key, tensor in weights.items()
        }


class DraftLoss(torch.autograd.Function):
    """Cross-entropy of states through a frozen lm_head, against tokens and against probabilities.

    mean over rows of (1 - soft) CE(logits, token) + soft CE(logits, wanted). Its gradient with respect to the
    logits, softmax(logits) - target, is computed in the forward pass, some rows at a time: autograd would
    keep all logits, and take twice as long.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, lm_head: Tensor, tokens: Tensor, wanted: Tensor | None, soft: float
    ) -> Tensor:
        """states [n, width]; lm_head [V, width]; tokens [n]: rows of lm_head, or -1 for tokens without one,
        which the first term skips; wanted [n, V]: probabilities.
        """
        soft = 0.0 if wanted is None else soft
        rows = max(1, CHUNK_LOGITS // len(lm_head)) if states.device.type == "cpu" else len(states)
        gradient = torch.empty_like(states)
        loss = states.new_zeros(())
        for at in range(0, len(states), rows):
            part = slice(at, at + rows)
            logits = (states[part].to(lm_head.dtype) @ lm_head.T).float()
            known = (tokens[part] >= 0).nonzero()[:, 0]
            token = tokens[part][known]
            share = torch.full((len(logits), 1), soft, device=states.device)
            share[known] += 1 - soft
            log_sum = logits.logsumexp(-1, keepdim=True)
            loss += (share * log_sum).sum() - (1 - soft) * logits[known, token].sum()
            if wanted is not None:
                loss -= soft * torch.linalg.vecdot(logits, wanted[part].float()).sum()
            by_logits = logits.sub_(log_sum).exp_().mul_(share)
            by_logits[known, token] -= 1 - soft
            if wanted is not None:
                by_logits.sub_(wanted[part], alpha=soft)
            gradient[part] = by_logits.to(lm_head.dtype) @ lm_head
        ctx.save_for_backward(gradient / len(states))
        return loss / len(states)

    @staticmethod
    def backward(ctx: Any, *by_loss: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return by_loss[0] * gradient, None, None, None, None


class Proposals:
    """Adapts a network in training to the interface engine.medusa.medusa_source.Heads, for scoring."""

    def __init__(self, network: DraftHeads, lm_head: Tensor, vocabulary: NDArray[np.int32]) -> None:
        self.heads, self.sees_path = len(network), network.sees_path
        self.metadata: dict[str, str] = {}
        self._network, self._lm_head, self._vocabulary = network, lm_head, vocabulary

    @torch.inference_mode()
    def propose(
        self,
        hidden: NDArray[np.float32],
        heads: int,
        top: int,
        first: int = 0,
        path: NDArray[np.int32] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        device = self._lm_head.device
        states = torch.from_numpy(hidden).to(device)
        above = torch.from_numpy(np.zeros((len(hidden), heads)) if path is None else path).to(device).long()
        given = [
            self._network.run(head, states, above[:, : 1 + head]).to(self._lm_head.dtype)
            for head in range(first, heads)
        ]
        logits = torch.stack([state @ self._lm_head.T for state in given], dim=1).float()
        best, rows = logits.softmax(dim=-1).topk(min(top, len(self._vocabulary)))
        return self._vocabulary[rows.cpu().numpy()], best.cpu().numpy()
