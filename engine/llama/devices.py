"""The devices beside the processor on which this build of llama.cpp computes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import llama_cpp

from engine.llama.ggml_tensors import ggml_function

# enum ggml_backend_dev_type of ggml-backend.h, which the bindings leave out
_GPU, _INTEGRATED_GPU = 1, 2


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. name: llama.cpp's, of the backend and a number. description: the driver's.

    integrated: its memory is that of the machine. free, total: bytes of memory, as the driver tells.
    """

    name: str
    description: str
    integrated: bool
    free: int
    total: int

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"


def devices() -> list[Device]:
    """The GPUs of this build; none where it was compiled without a backend for one, or finds no device."""
    if not llama_cpp.llama_supports_gpu_offload():  # which also loads the backends
        return []
    count = ggml_function("ggml_backend_dev_count", ctypes.c_size_t)()
    get = ggml_function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [device for device in map(_read, map(get, range(count))) if device]


def idle_backends() -> list[str]:
    """Backends without a device, such as "CUDA" whose driver is too old, if this build finds no GPU."""
    if devices():
        return []
    get = ggml_function("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name = ggml_function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    count = ggml_function("ggml_backend_reg_dev_count", ctypes.c_size_t, ctypes.c_void_p)
    backends = map(get, range(ggml_function("ggml_backend_reg_count", ctypes.c_size_t)()))
    idle = [_text(name(backend)) for backend in backends if not count(backend)]
    return [name for name in idle if name != "RPC"]  # whose devices are servers that a program adds


def free_device_memory() -> int | None:
    """Free bytes of all GPUs together; None without a GPU."""
    found = devices()
    return sum(device.free for device in found) if found else None


def _read(handle: int) -> Device | None:
    """None for a processor, and for what only speeds it up."""
    kind = ggml_function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)(handle)
    if kind not in (_GPU, _INTEGRATED_GPU):
        return None
    name, description = (
        ggml_function(f"ggml_backend_dev_{what}", ctypes.c_char_p, ctypes.c_void_p)(handle)
        for what in ("name", "description")
    )
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    size = ctypes.POINTER(ctypes.c_size_t)
    memory = ggml_function("ggml_backend_dev_memory", None, ctypes.c_void_p, size, size)
    memory(handle, ctypes.byref(free), ctypes.byref(total))
    return Device(_text(name), _text(description), kind == _INTEGRATED_GPU, free.value, total.value)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip()
