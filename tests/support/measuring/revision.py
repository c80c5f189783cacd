"""The commit that measured results are told with."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.workers import ROOT

# What benchmarks write, or renders what they wrote.
WRITTEN = [f":!{name}" for name in ("*.md", "*.svg", "*.png", "docs/measured/figures.json")]


def commit(root: Path = ROOT) -> str:
    """The short id of what is checked out, `-dirty` beside changed or new code; empty without git."""
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True
        )
        status = ["git", "status", "--porcelain", "--", ".", *WRITTEN]
        changed = subprocess.run(status, cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return asked.stdout.strip() + ("-dirty" if asked.stdout and changed.stdout else "")
