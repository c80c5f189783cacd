"""Loads our kernels into llama.cpp: models loaded after that are computed by them, in this process."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llama_cpp

from common.llama_build import Use, verdict
from engine.kernels.build import KernelsMissing, library
from engine.llama.ggml_tensors import ggml_function
from engine.llama.log import collect_log

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kernels:
    """path: of the library. variant: the instructions that it uses here. missing: why there are none, else
    empty.
    """

    path: Path | None = None
    variant: str = ""
    missing: str = ""

    def __str__(self) -> str:
        """For whoever keeps measurements: other kernels have other times."""
        return f"kernels {self.variant} {self.path.stem[-12:]}" if self.path else "no kernels"


@cache
def load_kernels() -> Kernels:
    """Once in a process, before its first model."""
    found = _load()
    if found.missing:
        log.warning("llama.cpp computes with its own kernels, which are slower: %s", found.missing)
    return found


def _load() -> Kernels:
    if verdict().use is not Use.AS_BUILT:
        return Kernels(missing="nothing but plain buffers is used here")
    if "OPENMP = 1" not in llama_cpp.llama_print_system_info().decode():
        return Kernels(missing="this llama.cpp was compiled without OpenMP, and so has threads of its own")
    try:
        path = library()
    except KernelsMissing as error:
        return Kernels(missing=str(error))
    collect_log()
    if not ggml_function("ggml_backend_load", ctypes.c_void_p, ctypes.c_char_p)(str(path).encode()):
        return Kernels(missing=f"{path} cannot be loaded")
    variant = ctypes.CDLL(str(path)).medusaq_kernels_variant
    variant.restype = ctypes.c_char_p
    name = variant()
    return Kernels(path, name.decode()) if name else Kernels(missing="this processor has no AVX2")


def enable_kernels(on: bool) -> None:
    """For comparisons: whether models that are loaded, and graphs that are built, from now on use them."""
    if path := load_kernels().path:
        ctypes.CDLL(str(path)).medusaq_kernels_enable(on)
