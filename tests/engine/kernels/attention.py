"""Calls of the kernels with random numbers, and what they must give, computed by NumPy in F64.

`python -m tests.engine.kernels.attention LIBRARY CASES` compares random calls, also with sanitizers.
"""

from __future__ import annotations

import copy
import ctypes
import random
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.llama_build import library_folder

F16, BF16, Q8_0 = range(3)  # enum CellType
VARIANTS = ("AVX-512 VNNI", "AVX-512", "AVX2")
POINTERS = ("q", "k", "v", "mask", "sinks", "out")
STRIDES = (
    *("q_row", "q_head", "q_stream", "k_cell", "k_head", "k_stream", "v_cell", "v_head", "v_stream"),
    *("mask_row", "mask_stream", "out_head", "out_row", "out_stream"),
)
COUNTS = ("rows", "streams", "kv_streams", "mask_streams", "kv_heads", "heads_per_kv", "cells")
OF_A_CASE = (
    *("rows", "streams", "kv_heads", "heads_per_kv", "cells"),
    *("head_k", "head_v", "cell_type", "soft_cap", "max_bias"),
)
MANY_ROWS = 64  # are computed in another way than few
BLOCK = 32  # numbers of Q8_0 that share a scale


class Attention(ctypes.Structure):
    """struct Attention of engine/kernels/attention/attention.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_size_t) for name in STRIDES),
        *((name, ctypes.c_int64) for name in COUNTS),
        *((name, ctypes.c_int) for name in ("head_k", "head_v", "cell_type")),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap", "max_bias")),
    )


@dataclass(frozen=True)
class Case:
    """spread: of the scores. hidden: share of the cells that a mask hides."""

    rows: int = 1
    streams: int = 1
    kv_heads: int = 1
    heads_per_kv: int = 1
    cells: int = 1
    head_k: int = 64
    head_v: int = 64
    cell_type: int = F16
    soft_cap: float = 0.0
    max_bias: float = 0.0
    sinks: bool = False
    hidden: float | None = 0.3
    spread: float = 1.0
    seed: int = 0

    def numbers(self) -> Numbers:
        return Numbers(self)


class Numbers:
    """The arrays of a case: queries [streams, heads, rows, head_k]; keys and values [streams, cells,
    kv_heads, their size], stored in the case's type and as they are meant, in F64; mask [streams, rows,
    cells].
    """

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(case.seed)
        heads = case.kv_heads * case.heads_per_kv
        self.case = case
        shape = (case.streams, heads, case.rows, case.head_k)
        self.queries = (rng.standard_normal(shape) * case.spread).astype(np.float32)
        sides = (case.streams, case.cells, case.kv_heads)
        self.k, self.keys = stored(rng.standard_normal((*sides, case.head_k)), case.cell_type)
        self.v, self.values = stored(rng.standard_normal((*sides, case.head_v)), case.cell_type)
        self.sinks = rng.standard_normal(heads).astype(np.float32) if case.sinks else None
        self.mask = None
        if case.hidden is not None:
            hides = rng.random((case.streams, case.rows, case.cells)) < case.hidden
            self.mask = np.where(hides, -np.inf, -rng.random(hides.shape)).astype(np.float16)

    def some(self, stream: int, rows: range) -> Numbers:
        """A call with these rows only."""
        one = copy.copy(self)
        one.case = replace(self.case, streams=1, rows=len(rows))
        these = slice(stream, stream + 1)
        one.queries = self.queries[these, :, rows.start : rows.stop]
        one.k, one.v, one.keys, one.values = (a[these] for a in (self.k, self.v, self.keys, self.values))
        one.mask = None if self.mask is None else self.mask[these, rows.start : rows.stop]
        return one

    def attend(self, library: ctypes.CDLL, variant: str, threads: int = 2) -> NDArray[np.float32] | None:
        """[streams, rows, heads, head_v]; None where this processor lacks the variant."""
        case, heads = self.case, self.queries.shape[1]
        out = np.full((case.streams, case.rows, heads, case.head_v), np.nan, np.float32)
        fields: dict[str, Any] = {name: getattr(case, name) for name in OF_A_CASE}
        fields |= {"kv_streams": case.streams, "mask_streams": case.streams}
        arrays = (self.queries, self.k, self.v, self.mask, self.sinks, out)
        for name, array in zip(POINTERS, arrays, strict=True):
            fields[name] = None if array is None else array.ctypes.data
        fields |= dict(zip(("q_stream", "q_head", "q_row"), self.queries.strides, strict=False))
        for side, array in (("k", self.k), ("v", self.v)):
            names = (f"{side}_stream", f"{side}_cell", f"{side}_head")
            fields |= dict(zip(names, array.strides, strict=False))
        if self.mask is not None:
            fields |= dict(zip(("mask_stream", "mask_row"), self.mask.strides, strict=False))
        fields |= dict(zip(("out_stream", "out_row", "out_head"), out.strides, strict=False))
        call = Attention(**fields, scale=case.head_k**-0.5)
        return out if library.medusaq_attend(variant.encode(), ctypes.byref(call), threads) else None

    def expected(self) -> NDArray[np.float64]:
        """By the definition, in F64."""
        case, heads = self.case, self.queries.shape[1]
        keys, values = (np.repeat(side, case.heads_per_kv, axis=2) for side in (self.keys, self.values))
        scores = np.einsum("shrd,schd->shrc", self.queries.astype(np.float64), keys) * case.head_k**-0.5
        if case.soft_cap:
            scores = case.soft_cap * np.tanh(scores / case.soft_cap)
        if self.mask is not None:
            scores += slopes(heads, case.max_bias)[None, :, None, None] * self.mask[:, None].astype(
                np.float64
            )
        sinks = np.full((1, heads, 1, 1), -np.inf) if self.sinks is None else self.sinks[None, :, None, None]
        largest = np.maximum(scores.max(-1, keepdims=True), sinks)
        largest = np.where(np.isfinite(largest), largest, 0.0)
        weights = np.exp(scores - largest)
        total = weights.sum(-1, keepdims=True) + np.exp(sinks - largest)
        shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        return np.einsum("shrc,schd->srhd", shares, values)


def slopes(heads: int, max_bias: float) -> NDArray[np.float64]:
    """ALiBi's, of each head (arXiv:2108.12409)."""
    if not max_bias:
        return np.ones(heads)
    base = 1 << (heads.bit_length() - 1)
    exponents = [-max_bias / base * (h + 1) for h in range(base)]
    exponents += [-max_bias / 2 / base * (2 * h + 1) for h in range(heads - base)]
    return np.exp2(exponents)


def stored(numbers: NDArray[np.float64], cell_type: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """As a cache stores them, and what that means."""
    if cell_type == F16:
        half = numbers.astype(np.float16)
        return half, half.astype(np.float64)
    if cell_type == BF16:
        bits = numbers.astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16), (bits << 16).view(np.float32).astype(np.float64)
    blocks = numbers.reshape(*numbers.shape[:-1], -1, BLOCK)
    scales = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16)
    whole = np.round(blocks / scales.astype(np.float64)).clip(-127, 127).astype(np.int8)
    stored = np.concatenate([scales.view(np.int8), whole], axis=-1)
    meant = scales.astype(np.float64) * whole
    return stored.reshape(*numbers.shape[:-1], -1), meant.reshape(numbers.shape)


def any_case(choose: random.Random) -> Case:
    cell_type = choose.choice((F16, BF16, Q8_0))
    sizes = [size for size in range(16, 577, 16) if cell_type != Q8_0 or size % BLOCK == 0]
    return Case(
        rows=choose.choice((choose.randint(1, 9), choose.randint(1, 9), 64, choose.randint(60, 140))),
        streams=choose.randint(1, 4),
        kv_heads=choose.randint(1, 3),
        heads_per_kv=choose.randint(1, 9),
        cells=choose.choice((1, 2, 15, 17, 63, 64, 65, 255, 256, 257, choose.randint(1, 1100))),
        head_k=choose.choice(sizes),
        head_v=choose.choice(sizes),
        cell_type=cell_type,
        soft_cap=choose.choice((0.0, 0.0, 5.0, 50.0)),
        max_bias=choose.choice((0.0, 0.0, 8.0)),
        sinks=choose.random() < 0.3,
        hidden=choose.choice((None, 0.0, 0.3, 0.99, 1.0)),
        spread=choose.choice((0.0, 1.0, 1.0, 30.0)),
        seed=choose.getrandbits(32),
    )


def differences(library: ctypes.CDLL, case: Case) -> dict[str, float]:
    """By variant that runs here: the largest difference to the definition, beside the largest value."""
    numbers = case.numbers()
    expected = numbers.expected()
    found = {}
    for variant in VARIANTS:
        if (out := numbers.attend(library, variant)) is not None:
            # Nearby numbers of other sign cancel: the error is that of the largest score and value.
            found[variant] = float(np.abs(out - expected).max() / max(1.0, np.abs(numbers.values).max()))
    return found


def tolerance(case: Case) -> float:
    """F32 scores have an error of their size, by which the weights are wrong."""
    return 2e-6 * (1 + case.spread * case.head_k**0.5 / 4)


def opened(path: str) -> ctypes.CDLL:
    ctypes.CDLL(str(library_folder() / "libggml-base.so.0"))  # which it needs
    return ctypes.CDLL(path)


def main() -> None:
    library, choose = opened(sys.argv[1]), random.Random(1)
    for _ in range(int(sys.argv[2])):
        case = any_case(choose)
        assert max(differences(library, case).values()) < tolerance(case), case


if __name__ == "__main__":
    main()
