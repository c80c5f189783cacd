"""Random graphs of what a layer computes, by the backend itself: by one thread, and by a team.

`python -m tests.engine.kernels.graphs LIBRARY CASES` computes random ones, also with sanitizers.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

import llama_cpp
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from engine.llama.ggml_tensors import GgmlTensor, ggml_function
from tests.engine.kernels.products import stored

HEAD, CELLS, EPSILON, BASE = 64, 40, 1e-5, 10_000.0
NEIGHBOURS, HALVES = 0, 2  # of GGML_ROPE_TYPE
HALF = {np.float16: int(GGMLQuantizationType.F16), ml_dtypes.bfloat16: int(GGMLQuantizationType.BF16)}
POINTER, SIZE, COUNT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
RETURNED_SIZES = ("ggml_tensor_overhead", "ggml_graph_overhead")
Array = NDArray[Any]


def call(name: str, *arguments: Any) -> Any:
    """A function of ggml: addresses and integers as they are, Python's float as C's."""
    values = [ctypes.c_float(a) if isinstance(a, float) else a for a in arguments]
    kinds = [
        ctypes.c_float if isinstance(a, float) else type(a) if isinstance(a, ctypes.Structure) else POINTER
        for a in arguments
    ]
    return ggml_function(name, SIZE if name in RETURNED_SIZES else POINTER, *kinds)(*values)


class _Memory(ctypes.Structure):
    _fields_ = (("size", SIZE), ("at", POINTER), ("without_data", ctypes.c_bool))


class Graph:
    """Tensors of F32, [tokens, numbers], in memory that is given out as llama.cpp gives it out."""

    def __init__(self, backend: int, tokens: int) -> None:
        self.backend, self.tokens = backend, tokens
        self._inputs = self._context()
        self._packed = self._context()
        self._computed = self._context()
        self._values: list[tuple[int, Array]] = []
        self._results: list[int] = []

    def _context(self) -> int:
        size = 500 * call("ggml_tensor_overhead") + 2 * call("ggml_graph_overhead")
        context: int = call("ggml_init", _Memory(size, None, True))
        return context

    def _tensor(self, context: int, kind: int, value: Array, *lengths: int) -> int:
        tensor: int = call("ggml_new_tensor_2d", context, kind, *(*lengths, 1)[:2])
        self._values.append((tensor, np.ascontiguousarray(value)))
        return tensor

    def given(self, value: Array) -> int:
        kinds = {"f": llama_cpp.GGML_TYPE_F32, "i": llama_cpp.GGML_TYPE_I32, "l": llama_cpp.GGML_TYPE_I64}
        return self._tensor(self._inputs, kinds[value.dtype.char], value, *value.shape[::-1])

    def cache(self, value: NDArray[np.uint16], kind: type[Any]) -> int:
        """Of F16 or BF16: the bits of the numbers."""
        return self._tensor(self._inputs, HALF[kind], value, *value.shape[::-1])

    def weights(self, value: NDArray[np.float32]) -> int:
        """[outputs, inputs], in Q8_0, packed."""
        packed, _meant = stored(value, GGMLQuantizationType.Q8_0)
        kind = int(GGMLQuantizationType.Q8_0)
        return self._tensor(self._packed, kind, packed, *value.shape[::-1])

    def apply(self, name: str, *arguments: Any) -> int:
        found: int = call(f"ggml_{name}", self._computed, *arguments)
        return found

    def heads(self, tensor: int) -> int:
        width = GgmlTensor.from_address(tensor).ne[0]
        return self.apply("reshape_3d", tensor, HEAD, width // HEAD, self.tokens)

    def rotate(self, tensor: int, positions: int, mode: int, factors: int | None = None) -> int:
        """Of 3 dimensions."""
        numbers = (HEAD, mode, 2048, BASE, 0.5, 0.0, 1.25, 32.0, 1.0)
        return self.apply("rope_ext", tensor, positions, factors, *numbers)

    def keep(self, tensor: int) -> None:
        """Its numbers are among those that run() returns."""
        call("ggml_set_output", tensor)
        self._results.append(tensor)

    def run(self, threads: int) -> list[Array]:
        host = call("ggml_backend_cpu_buffer_type")
        device = call("ggml_backend_get_device", self.backend)
        registered = call("ggml_backend_dev_by_name", b"medusaq")
        packed = call("ggml_backend_dev_buffer_type", registered)
        buffers = [
            call("ggml_backend_alloc_ctx_tensors_from_buft", context, kind)
            for context, kind in ((self._inputs, host), (self._packed, packed))
        ]
        for tensor, value in self._values:
            call("ggml_backend_tensor_set", tensor, value.ctypes.data, 0, value.nbytes)
        graph = call("ggml_new_graph", self._computed)
        for tensor in self._results:
            call("ggml_build_forward_expand", graph, tensor)
        given_out = call("ggml_gallocr_new", host)
        try:
            assert call("ggml_gallocr_alloc_graph", given_out, graph)
            library = call("ggml_backend_dev_backend_reg", device)
            found = call("ggml_backend_reg_get_proc_address", library, b"ggml_backend_set_n_threads")
            ctypes.CFUNCTYPE(None, POINTER, ctypes.c_int)(found)(self.backend, threads)
            assert not call("ggml_backend_graph_compute", self.backend, graph)
            return [self._read(tensor) for tensor in self._results]
        finally:
            call("ggml_gallocr_free", given_out)
            for buffer in filter(None, buffers):
                call("ggml_backend_buffer_free", buffer)
            for context in (self._inputs, self._packed, self._computed):
                call("ggml_free", context)

    def _read(self, address: int) -> Array:
        tensor = GgmlTensor.from_address(address)
        kinds = {number: kind for kind, number in HALF.items()}
        out = np.empty(tuple(tensor.ne)[::-1], kinds.get(tensor.type, np.float32))
        call("ggml_backend_tensor_get", address, out.ctypes.data, 0, out.nbytes)
        return out


def any_graph(choose: random.Random, backend: int, tokens: int) -> Graph:
    """Like a few layers, with residuals, caches that are written, and a choice of tokens at the end."""
    rng = np.random.default_rng(choose.getrandbits(32))
    graph = Graph(backend, tokens)

    def numbers(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape).astype(np.float32)

    def product(tensor: int, outputs: int) -> int:
        inputs = GgmlTensor.from_address(tensor).ne[0]
        weights = numbers(outputs, inputs) / np.float32(inputs**0.5)
        return graph.apply("mul_mat", graph.weights(weights), tensor)

    width = HEAD * choose.randint(1, 4)
    positions = graph.given(rng.integers(0, 1000, tokens, np.int32))
    cells = graph.given(rng.permutation(CELLS)[:tokens].astype(np.int64))
    stream = graph.given(numbers(tokens, width))
    for _layer in range(choose.randint(1, 3)):
        normal = graph.apply(
            "mul", graph.apply("rms_norm", stream, EPSILON), graph.given(numbers(1, width)[0])
        )
        first, second = product(normal, width), product(normal, width)
        if choose.random() < 0.5:
            of_heads = graph.apply("rms_norm", graph.heads(first), EPSILON)
            of_heads = graph.apply("mul", of_heads, graph.given(numbers(1, HEAD)[0]))
        else:
            of_heads = graph.heads(graph.apply("add", first, graph.given(numbers(1, width)[0])))
        turned = graph.rotate(of_heads, positions, choose.choice((NEIGHBOURS, HALVES)))
        key = graph.rotate(graph.heads(second), positions, choose.choice((NEIGHBOURS, HALVES)))
        cache = graph.cache(np.zeros((CELLS, width), np.uint16), np.float16)
        graph.keep(graph.apply("set_rows", cache, graph.apply("reshape_2d", key, width, tokens), cells))
        stream = graph.apply("add", product(graph.apply("reshape_2d", turned, width, tokens), width), stream)
        gated = (
            graph.apply("swiglu", product(stream, 2 * HEAD))
            if choose.random() < 0.5
            else graph.apply("swiglu_split", product(stream, 2 * HEAD), product(stream, 2 * HEAD))
        )
        stream = graph.apply("add", product(gated, width), stream)
    chosen = rng.integers(0, tokens, choose.randint(1, tokens), np.int32)
    graph.keep(product(graph.apply("get_rows", stream, graph.given(chosen)), 50))
    return graph


def new_backend() -> int:
    device = call("ggml_backend_dev_by_name", b"medusaq")
    backend: int = call("ggml_backend_dev_init", device, None)
    return backend


def by_team_and_alone(seed: int, tokens: int, threads: int) -> tuple[list[Array], list[Array]]:
    backend = new_backend()
    try:
        make: Callable[[], Graph] = lambda: any_graph(random.Random(seed), backend, tokens)  # noqa: E731
        return make().run(threads), make().run(1)
    finally:
        call("ggml_backend_free", backend)


def main() -> None:
    llama_cpp.llama_backend_init()
    assert call("ggml_backend_load", sys.argv[1].encode())
    for seed in range(int(sys.argv[2])):
        team, alone = by_team_and_alone(seed, 1 + seed * 7 % CELLS, 1 + seed % 4)
        assert all(np.isfinite(a).all() and (a == b).all() for a, b in zip(team, alone, strict=True)), seed


if __name__ == "__main__":
    main()
