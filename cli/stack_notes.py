"""What a running stack leaves in its state folder for other commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cli.lock import held

STACK_FILE = "stack.json"  # while the stack runs
MODELS_FILE = "models.json"  # likewise, where it has several models


def running_stack(state_dir: Path) -> dict[str, Any]:
    """Settings of the `medusaq up` that runs on a state folder, by field; empty when none does."""
    return _read(state_dir, STACK_FILE)


def running_models(state_dir: Path) -> dict[str, Any]:
    """The budget, and what each of several models does; empty where no stack with several runs."""
    return _read(state_dir, MODELS_FILE)


def _read(state_dir: Path, name: str) -> dict[str, Any]:
    if not held(state_dir):
        return {}  # a killed one leaves the file
    try:
        found: dict[str, Any] = json.loads((state_dir / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
