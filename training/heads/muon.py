"""Muon (K. Jordan 2024, https://kellerjordan.github.io/posts/muon) in a number type of one's choice.

torch.optim.Muon computes in bfloat16, which a processor without instructions for it takes several times as
long for as for 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration: the steepest at zero
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum (Nesterov), whose direction is made orthogonal. For matrices alone."""

    def __init__(
        self, matrices: Iterable[Tensor], *, momentum: float, weight_decay: float, dtype: torch.dtype
    ) -> None:
        """dtype: of the products of matrices."""
        defaults = {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(matrices, defaults)
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None, "the gradients are there"
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, matrix.grad, group["lr"], group["momentum"], group["weight_decay"])

    def _update(
        self, matrix: Tensor, gradient: Tensor, lr: float, momentum: float, weight_decay: float
    ) -> None:
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        mean = state["momentum"].lerp_(gradient, 1 - momentum)
        direction = orthogonal(gradient.lerp(mean, momentum).to(self._dtype))
        rows, columns = matrix.shape
        matrix.mul_(1 - lr * weight_decay)
        matrix.add_(direction.to(matrix.dtype), alpha=-lr * max(1, rows / columns) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """About U V' of a matrix U S V', by Newton-Schulz iteration: singular values from 0.5 to 1.5, not 1."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
