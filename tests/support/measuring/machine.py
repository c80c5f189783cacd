"""What measured results are told with: the processor, and the commit."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from tests.support.workers import ROOT


def processor() -> str:
    """Its name, as Linux tells it."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit(root: Path = ROOT) -> str:
    """The short id of what is checked out, `-dirty` when files differ from it; empty where git knows none."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(asked, cwd=root, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""
