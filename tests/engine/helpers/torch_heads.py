"""Medusa heads in torch.nn, built as their publishers build theirs, so that state_dict() has their keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.medusa.loader import load_heads
from engine.medusa.onnx.graph import build
from engine.medusa.onnx.heads import OnnxHeads
from engine.medusa.weights import HeadWeights
from tests.engine.helpers.float_heads import FloatHeads

WIDTH, VOCAB, HEADS, TOP = 24, 90, 3, 5
LM_HEAD = np.random.default_rng(5).standard_normal((VOCAB, WIDTH)).astype(np.float32)
TOKEN_MAP = np.random.default_rng(6).permutation(VOCAB)[:40]
HIDDEN = np.random.default_rng(7).standard_normal((6, WIDTH)).astype(np.float32)

State = dict[str, Tensor]


def lm_head(ids: NDArray[np.int32] | None) -> NDArray[np.float32]:
    return LM_HEAD.copy() if ids is None else LM_HEAD[ids]


def load(path: Path) -> FloatHeads:
    return FloatHeads.load(str(path), width=WIDTH, vocab_size=VOCAB, lm_head=lm_head)


class ResBlock(nn.Module):
    """FasterDecoding/Medusa: {head}.{layer}.linear."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


def medusa(layers: int, own_lm_head: bool) -> nn.ModuleList:
    """v1 with an lm_head of its own for each head, v2 without."""
    torch.manual_seed(layers)
    tail = [nn.Linear(WIDTH, VOCAB, bias=False)] if own_lm_head else []
    return nn.ModuleList(
        nn.Sequential(
            *(ResBlock() for _ in range(layers)), *(nn.Linear(WIDTH, VOCAB, bias=False) for _ in tail)
        )
        for _ in range(HEADS)
    )


class VllmBlock(nn.Module):
    def __init__(self, layers: int, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.silu(layer(x))
        return x


class Vllm(nn.Module):
    """vLLM: blocks.{head}.layers.{layer}, lm_heads.{head} over `rows` tokens."""

    def __init__(self, layers: int, rows: int, lm_heads: int = HEADS, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(layers)
        self.blocks = nn.ModuleList(VllmBlock(layers, bias) for _ in range(HEADS))
        self.lm_heads = nn.ModuleList(nn.Linear(WIDTH, rows, bias=False) for _ in range(lm_heads))


def write(path: Path, state: State, metadata: dict[str, str] | None = None) -> Path:
    if path.suffix == ".safetensors":
        save_file({key: value.contiguous() for key, value in state.items()}, path, metadata)
    else:
        torch.save(state, path)
    return path


def onnx_heads(path: Path, bits: int = 8, **options: object) -> OnnxHeads:
    defaults = {"width": WIDTH, "vocab_size": VOCAB, "lm_head": lm_head, "bits": bits}
    return load_heads(str(path), **{**defaults, **options})  # type: ignore[arg-type]


def written(source: Path, path: Path, bits: int = 8) -> Path:
    """An ONNX file of these heads."""
    path.write_bytes(build(HeadWeights(str(source), WIDTH, VOCAB, lm_head), bits))
    return path


def mapped(state: State) -> State:
    return {**state, "token_map": torch.from_numpy(TOKEN_MAP)}
