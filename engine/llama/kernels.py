"""Loads our kernels into llama.cpp: models loaded after that are computed by them, in this process."""

from __future__ import annotations

import ctypes
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llama_cpp

from common.llama_build import KERNELS_VARIABLE, Use, verdict
from engine.kernels.build import KernelsMissing, library
from engine.llama.ggml_tensors import ggml_function
from engine.llama.log import collect_log

OFF = "off"
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
    choice = os.environ.get(KERNELS_VARIABLE, "")
    if choice == OFF:
        return Kernels(missing=f"{KERNELS_VARIABLE} is {OFF}")
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
    ours = ctypes.CDLL(str(path))
    if choice and not ours.medusaq_kernels_use(choice.encode()):
        log.warning("%s: this processor has no variant %s", KERNELS_VARIABLE, choice)
    ours.medusaq_kernels_variant.restype = ctypes.c_char_p
    name = ours.medusaq_kernels_variant()
    return Kernels(path, name.decode()) if name else Kernels(missing="this processor has no AVX2")


def attentions_computed() -> int:
    """How often they have computed a layer's attention in this process."""
    if not (path := load_kernels().path):
        return 0
    count = ctypes.CDLL(str(path)).medusaq_kernels_attentions
    count.restype = ctypes.c_int64
    return int(count())


def enable_kernels(on: bool) -> None:
    """For comparisons: whether models that are loaded, and graphs that are built, from now on use them."""
    if path := load_kernels().path:
        ctypes.CDLL(str(path)).medusaq_kernels_enable(on)
