"""Single tensors of a GGUF, found by llama.cpp: the gguf package takes seconds to pass a large vocabulary."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.llama.ggml_tensors import ggml_function


@dataclass(frozen=True, slots=True)
class RawTensor:
    """type: ggml's number. data: [rows, bytes of a row], as it lies in the file."""

    type: int
    data: NDArray[np.uint8]


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.POINTER(ctypes.c_void_p)))


def read_tensor(path: str, names: Iterable[str]) -> RawTensor | None:
    """The first of these that the file holds.

    Raises OSError for a file that cannot be opened, ValueError for one that is no GGUF or is cut off.
    """
    with Path(path).open("rb"):  # of a failure of its own llama.cpp gives no reason
        pass
    pointer, name_type, at = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
    shapes = ctypes.c_void_p()
    open_file = ggml_function("gguf_init_from_file", pointer, name_type, _InitParams)
    file = open_file(os.fsencode(path), _InitParams(True, ctypes.pointer(shapes)))
    if not file:
        raise ValueError("not a GGUF that can be read")
    try:
        find = ggml_function("gguf_find_tensor", at, pointer, name_type)
        for name in names:
            if (number := find(file, name.encode())) < 0:
                continue
            tensor = ggml_function("ggml_get_tensor", pointer, pointer, name_type)(shapes, name.encode())
            rows = ggml_function("ggml_nrows", ctypes.c_int64, pointer)(tensor)
            size = ggml_function("gguf_get_tensor_size", ctypes.c_size_t, pointer, at)(file, number)
            offset = ggml_function("gguf_get_data_offset", ctypes.c_size_t, pointer)(file)
            offset += ggml_function("gguf_get_tensor_offset", ctypes.c_size_t, pointer, at)(file, number)
            kind = ggml_function("gguf_get_tensor_type", ctypes.c_int, pointer, at)(file, number)
            data = np.memmap(path, np.uint8, mode="r", offset=offset, shape=(rows, size // rows))
            return RawTensor(kind, data)
        return None
    finally:
        ggml_function("gguf_free", None, pointer)(file)
        ggml_function("ggml_free", None, pointer)(shapes)
