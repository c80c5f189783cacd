"""Products by the kernels with random numbers, and what they must give, computed by NumPy in F64.

`python -m tests.engine.kernels.products LIBRARY CASES` compares random calls, also with sanitizers.
"""

from __future__ import annotations

import ctypes
import random
import sys
from dataclasses import dataclass

import llama_cpp
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from engine.llama.ggml_tensors import ggml_function
from tests.engine.kernels.attention import VARIANTS, opened

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")  # enum WeightType
BLOCK = 32  # activations that share a scale
PADDING = 5  # numbers between two rows of activations


class Product(ctypes.Structure):
    """struct Product of engine/kernels/products/products.h."""

    _fields_ = (
        *(("weights", ctypes.c_void_p), ("out", ctypes.c_void_p)),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "rows")),
        ("type", ctypes.c_int),
    )


@dataclass(frozen=True)
class Case:
    weights: str = "Q4_1"
    inputs: int = 256
    outputs: int = 16
    rows: int = 1
    spread: float = 1.0
    seed: int = 0

    def numbers(self) -> Numbers:
        return Numbers(self)


class Numbers:
    """The arrays of a case: weights [outputs, bytes] as a file has them, and as they are meant, in F64;
    activations [rows, inputs].
    """

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(case.seed)
        self.case = case
        weights = rng.standard_normal((case.outputs, case.inputs)).astype(np.float32)
        weights *= rng.choice([0.0, 0.1, 1.0], (case.outputs, 1)).astype(np.float32)
        self.stored, self.meant = stored(weights, GGMLQuantizationType[case.weights])
        scales = np.exp(rng.standard_normal((case.rows, 1)) * case.spread)
        padded = rng.standard_normal((case.rows, case.inputs + PADDING)) * scales
        self.activations = padded.astype(np.float32)[:, : case.inputs]

    def multiply(
        self, library: ctypes.CDLL, variant: str, rows: slice = slice(None), threads: int = 2
    ) -> NDArray[np.float32] | None:
        """[rows, outputs]; None where this processor lacks the variant."""
        case, activations = self.case, self.activations[rows]
        out = np.full((len(activations), case.outputs), np.nan, np.float32)
        call = Product(
            weights=self.stored.ctypes.data,
            out=out.ctypes.data,
            inputs=case.inputs,
            outputs=case.outputs,
            rows=len(activations),
            type=TYPES.index(case.weights),
        )
        here, step = ctypes.c_void_p(activations.ctypes.data), ctypes.c_size_t(activations.strides[0] // 4)
        return (
            out
            if library.medusaq_multiply(variant.encode(), ctypes.byref(call), here, step, threads)
            else None
        )

    def expected(self) -> NDArray[np.float64]:
        """With activations rounded to bytes, in blocks; else exact."""
        blocks = self.activations.reshape(self.case.rows, -1, BLOCK)
        largest = np.abs(blocks).max(-1, keepdims=True)
        factors = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
        rounded = np.rint(blocks * factors) * (largest / np.float32(127)).astype(np.float64)
        product: NDArray[np.float64] = rounded.reshape(self.case.rows, -1) @ self.meant.T
        return product


def stored(
    weights: NDArray[np.float32], kind: GGMLQuantizationType
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """As a file stores them, and what that means."""
    outputs, inputs = weights.shape
    numbers, size = GGML_QUANT_SIZES[kind]
    packed = np.empty((outputs, inputs // numbers * size), np.uint8)
    count, pointer = ctypes.c_int64, ctypes.c_void_p
    quantise = ggml_function(
        "ggml_quantize_chunk", ctypes.c_size_t, ctypes.c_int, pointer, pointer, count, count, count, pointer
    )
    written = quantise(int(kind), weights.ctypes.data, packed.ctypes.data, 0, outputs, inputs, None)
    assert written == packed.nbytes
    return packed, dequantize(packed, kind).astype(np.float64)


def any_case(choose: random.Random) -> Case:
    weights = choose.choice(TYPES)
    return Case(
        weights=weights,
        inputs=256 * choose.randint(1, 4) if weights.endswith("K") else 32 * choose.randint(1, 20),
        outputs=choose.choice((1, 15, 16, 17, choose.randint(1, 200))),
        rows=choose.choice((1, 2, 7, 8, 9, 127, 128, 129, choose.randint(1, 40))),
        spread=choose.choice((0.0, 1.0, 5.0)),
        seed=choose.getrandbits(32),
    )


def differences(library: ctypes.CDLL, case: Case) -> dict[str, float]:
    """By variant that runs here: the largest difference to the definition, beside what is added up."""
    numbers = case.numbers()
    expected = numbers.expected()
    sizes = np.abs(numbers.activations).astype(np.float64) @ np.abs(numbers.meant).T + 1e-30
    found = {}
    for variant in VARIANTS:
        if (out := numbers.multiply(library, variant)) is not None:
            found[variant] = float((np.abs(out - expected) / sizes).max())
    return found


TOLERANCE = 2e-6  # of the sum of all absolute products: minima cancel


def main() -> None:
    llama_cpp.llama_backend_init()
    library, choose = opened(sys.argv[1]), random.Random(1)
    for _ in range(int(sys.argv[2])):
        case = any_case(choose)
        assert max(differences(library, case).values()) < TOLERANCE, case


if __name__ == "__main__":
    main()
