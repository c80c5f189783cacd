"""The commit that measured results are told with."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.workers import ROOT

# What benchmarks write, or renders what they wrote.
WRITTEN = [f":!{name}" for name in ("*.md", "*.svg", "*.png", "docs/measured/figures.json")]


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
