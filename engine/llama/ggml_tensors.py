"""Access to llama.cpp's tensors while it computes, through ggml's C structures."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from engine.base.errors import ImportanceError


class GgmlTensor(ctypes.Structure):
    """struct ggml_tensor of ggml.h, which the bindings leave out; operations() checks its layout."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),  # numbers in each dimension, that of a row first
        ("nb", ctypes.c_size_t * 4),  # bytes from one to the next
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    )


_OBJECT = 32  # bytes of the header that ggml stores before each tensor of a context


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def ggml_function(name: str, returns: Any, *takes: Any) -> Any:
    """A function of the library that llama.cpp computes with; by another path there would be a second one."""
    function = getattr(llama_cpp.llama_cpp._lib, name)
    function.restype, function.argtypes = returns, takes
    return function


def operations() -> tuple[int, int]:
    """The op codes of ggml_mul_mat and ggml_mul_mat_id (which routes rows to experts).

    Creates both with known tensors and reads them back, before any address is trusted. Raises ImportanceError
    if this library lays out tensors in another way.
    """
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    size = ggml_function("ggml_tensor_overhead", ctypes.c_size_t)()
    if size != ctypes.sizeof(GgmlTensor) + _OBJECT:
        raise ImportanceError(f"{_UNKNOWN}: they take {size} bytes")
    new = ggml_function("ggml_new_tensor_3d", pointer, pointer, ctypes.c_int, integer, integer, integer)
    context = ggml_function("ggml_init", pointer, _InitParams)(_InitParams(16 * size, None, True))
    try:
        f32, i32 = llama_cpp.GGML_TYPE_F32, llama_cpp.GGML_TYPE_I32
        matrices, rows = new(context, f32, 7, 5, 4), new(context, f32, 7, 1, 3)
        plain, chosen = new(context, f32, 7, 6, 1), new(context, i32, 2, 3, 1)
        ggml_function("ggml_set_name", pointer, pointer, ctypes.c_char_p)(matrices, b"matrices")
        multiply = ggml_function("ggml_mul_mat", pointer, pointer, pointer, pointer)
        route = ggml_function("ggml_mul_mat_id", pointer, pointer, pointer, pointer, pointer)
        product = GgmlTensor.from_address(multiply(context, plain, plain))
        routed = GgmlTensor.from_address(route(context, matrices, rows, chosen))
        matrix = GgmlTensor.from_address(matrices)
        read = (
            matrix.name,
            matrix.type,
            list(matrix.ne),
            list(matrix.nb),
            list(product.src[:3]),
            list(routed.src[:3]),
        )
        numbers = ([7, 5, 4, 1], [4, 28, 140, 560], [plain, plain, None], [matrices, rows, chosen])
        if read != (b"matrices", f32, *numbers) or len({matrix.op, product.op, routed.op}) != 3:
            raise ImportanceError(f"{_UNKNOWN}: {read}")
        return product.op, routed.op
    finally:
        ggml_function("ggml_free", None, pointer)(context)


_UNKNOWN = "this build of llama.cpp lays out its tensors in a way that is not known here"


def name_of(tensor: GgmlTensor) -> str:
    """The tensor's name in the GGUF; a copy on a GPU is named device#name#number."""
    parts = str(tensor.name.decode("utf-8", "replace")).split("#")
    return parts[1] if len(parts) > 1 else parts[0]


def numbers_of(address: int, dtype: type[Any]) -> NDArray[Any]:
    """The content of a tensor, in memory or on a GPU: [.., .., rows, columns]."""
    tensor = GgmlTensor.from_address(address)
    lengths, steps = tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1]
    size = sum((n - 1) * step for n, step in zip(lengths, steps, strict=True)) + np.dtype(dtype).itemsize
    held = np.empty(size, dtype=np.uint8)
    pointer = ctypes.c_void_p
    get = ggml_function("ggml_backend_tensor_get", None, pointer, pointer, ctypes.c_size_t, ctypes.c_size_t)
    get(address, held.ctypes.data, 0, size)
    return np.lib.stride_tricks.as_strided(held.view(dtype), lengths, steps, writeable=False)


class ProductWatcher:
    """Sees products of matrices while llama.cpp computes: `callback` is for a context's cb_eval, and lives as
    long as this. Raises ImportanceError where operations() does.
    """

    def __init__(self) -> None:
        self._product, self._routed_product = operations()
        self._error: BaseException | None = None
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._see)

    def wants(self, name: str, product: GgmlTensor) -> bool:
        """Whether to take() this product with the matrix of this name."""
        raise NotImplementedError

    def take(self, name: str, product: GgmlTensor, address: int) -> None:
        """It has been computed; the address is for numbers_of()."""
        raise NotImplementedError

    def routed(self, product: GgmlTensor) -> bool:
        """Whether rows go to experts."""
        return bool(product.op == self._routed_product)

    def check(self) -> None:
        """Raise an exception of the callback, which cannot propagate through llama.cpp; Ctrl-C included."""
        if self._error:
            raise self._error

    def _see(self, address: int, ask: bool, _user_data: ctypes.c_void_p) -> bool:
        """The callback: called with ask before a tensor is computed, and after it if this returned True."""
        if self._error:
            return False
        try:
            product = GgmlTensor.from_address(address)
            if product.op not in (self._product, self._routed_product):
                return False
            name = name_of(GgmlTensor.from_address(product.src[0]))
            if not self.wants(name, product):
                return False
            if not ask:
                self.take(name, product, address)
        except BaseException as error:
            self._error = error
            return False
        return True
