"""What measured results are told with: the processor, its cores, and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from tests.support.workers import ROOT

# The most that llama.cpp can use of these decides how fast it is; as the flags of /proc/cpuinfo.
EXTENSIONS = {
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX-512 BF16",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX-VNNI",
    "avx2": "AVX2",
}

# What benchmarks write, or renders what they wrote.
WRITTEN = [f":!{name}" for name in ("*.md", "*.svg", "*.png", "docs/measured/figures.json")]


def processor() -> str:
    """Its name, as Linux tells it, and its widest vector instructions."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    fields = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in told.splitlines())}
    flags = fields.get("flags", "").split()
    widest = next((f" ({name})" for flag, name in EXTENSIONS.items() if flag in flags), "")
    return fields.get("model name", platform.machine()) + widest


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def commit(root: Path = ROOT) -> str:
    """The short id of what is checked out, `-dirty` when code differs from it; empty where git knows none."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True
        )
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", *WRITTEN], cwd=root)
    except FileNotFoundError:
        return ""
    return asked.stdout.strip() + ("-dirty" if asked.stdout and changed.returncode else "")
