"""Draft heads in torch.nn, built as their publishers build theirs, so that state_dict() has their keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.medusa.loader import load_heads
from engine.medusa.onnx.graph import build
from engine.medusa.onnx.heads import OnnxHeads
from engine.medusa.weights import HeadWeights
from tests.engine.helpers.float_heads import FloatHeads, GivenRows

WIDTH, VOCAB, HEADS, TOP = 24, 90, 3, 5
LM_HEAD = np.random.default_rng(5).standard_normal((VOCAB, WIDTH)).astype(np.float32)
EMBEDDINGS = np.random.default_rng(8).standard_normal((VOCAB, WIDTH)).astype(np.float32)
TOKEN_MAP = np.random.default_rng(6).permutation(VOCAB)[:40]
PATH = np.random.default_rng(9).integers(0, VOCAB, (6, HEADS)).astype(np.int32)
HIDDEN = np.random.default_rng(7).standard_normal((6, WIDTH)).astype(np.float32)

State = dict[str, Tensor]


MODEL_ROWS = GivenRows(LM_HEAD, EMBEDDINGS)


def load(path: Path) -> FloatHeads:
    return FloatHeads.load(str(path), width=WIDTH, vocab_size=VOCAB, model_rows=MODEL_ROWS)


class ResBlock(nn.Module):
    """FasterDecoding/Medusa: {head}.{layer}.linear."""

    def __init__(self, inputs: int = WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, WIDTH)

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


def hydra(layers: int) -> nn.ModuleList:
    """Ours that see the path: only to be written, as forward() lacks the embeddings."""
    torch.manual_seed(layers)
    return nn.ModuleList(
        nn.Sequential(*(ResBlock(WIDTH if layer else (2 + head) * WIDTH) for layer in range(layers)))
        for head in range(HEADS)
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
    defaults = {"width": WIDTH, "vocab_size": VOCAB, "model_rows": MODEL_ROWS, "bits": bits}
    return load_heads(str(path), **{**defaults, **options})  # type: ignore[arg-type]


def written(source: Path, path: Path, bits: int = 8) -> Path:
    """An ONNX file of these heads."""
    path.write_bytes(build(HeadWeights(str(source), WIDTH, VOCAB, MODEL_ROWS), bits))
    return path


def mapped(state: State) -> State:
    return {**state, "token_map": torch.from_numpy(TOKEN_MAP)}
