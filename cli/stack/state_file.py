"""The files in a state folder in which a running stack describes itself to other commands."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.processes.folder_lock import is_locked
from cli.processes.private_files import FILE
from cli.processes.restart_backoff import Restart
from common.atomic_write import atomic_file

STACK_FILE = "stack.json"  # while the stack runs
MODELS_FILE = "models.json"  # likewise, where it has several models
RESTARTS_FILE = "restarts.json"  # likewise, once a service has ended
ENTRIES = (
    "lock",
    STACK_FILE,
    MODELS_FILE,
    RESTARTS_FILE,
    "logs",
    "redis",
    "files",
    "flower*",
)  # all that is there


def running_stack(state_dir: Path) -> dict[str, Any]:
    """The settings of the `medusaq up` that runs on a state folder, by field; empty if none runs."""
    return _read(state_dir, STACK_FILE)


def running_models(state_dir: Path) -> dict[str, Any]:
    """The budget and the state of each model; empty if no stack with several models runs."""
    return _read(state_dir, MODELS_FILE)


def running_restarts(state_dir: Path) -> list[Restart]:
    """Services of the `medusaq up` that runs on a state folder which ended, and were not healthy since."""
    return [Restart(**one) for one in _read(state_dir, RESTARTS_FILE).get("services", ())]


def write_restarts(state_dir: Path, restarts: Sequence[Restart]) -> None:
    write_note(state_dir / RESTARTS_FILE, {"services": [asdict(one) for one in restarts]})


def write_note(note: Path, content: dict[str, Any]) -> None:
    """Write a state file; ignores errors, so that a full disk stops no service."""
    with suppress(OSError), atomic_file(note, durable=False) as file:
        os.fchmod(file.fileno(), FILE)
        file.write(json.dumps(content).encode())


def _read(state_dir: Path, name: str) -> dict[str, Any]:
    if not is_locked(state_dir):
        return {}  # the file may be left over from a killed stack
    try:
        found: dict[str, Any] = json.loads((state_dir / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
