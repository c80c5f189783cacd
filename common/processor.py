"""The processor of this machine, as Linux describes it."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
COMPILED_FOR = ", compiled for "
# The most that llama.cpp can use of these decides how fast it is; as the flags of /proc/cpuinfo.
EXTENSIONS = {
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX-512 BF16",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX-VNNI",
    "avx2": "AVX2",
}


def processor(compiled: Collection[str] = EXTENSIONS) -> str:
    """Name, widest vector instructions, family and model: hypervisors give different processors one name.

    Of others than x86 the architecture alone. compiled: instructions that a program was compiled for; the
    widest of them is named, too, if the processor has wider ones.
    """
    fields, has = _fields(), flags()
    known = [flag for flag in EXTENSIONS if flag in has]
    used = [flag for flag in known if flag in compiled]
    name = fields.get("model name") or platform.processor() or platform.machine()
    less = "" if used[:1] == known[:1] else f"{COMPILED_FOR}{EXTENSIONS[used[0]] if used else 'none'}"
    widest = f" ({EXTENSIONS[known[0]]}{less})" if known else ""
    kind = (
        f", family {fields['cpu family']} model {fields['model']}"
        if {"cpu family", "model"} <= fields.keys()
        else ""
    )
    return name + widest + kind


def flags() -> frozenset[str]:
    """Instructions that it has, as Linux names them; empty where they are unknown."""
    return frozenset(_fields().get("flags", "").split())


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fields() -> dict[str, str]:
    """Of the last core; empty where Linux tells nothing."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
