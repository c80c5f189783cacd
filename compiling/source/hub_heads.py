"""Fetches draft heads by name from a hub."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from compiling.base.errors import HubError
from compiling.source import hub
from engine.medusa.layouts import FILES

SUFFIXES = (".pt", ".bin", ".safetensors", ".onnx")


def find(heads: str) -> Path:
    """The path of heads. For a hub's name the heads are fetched once to a folder.

    A path that does not exist is returned unchanged. Raises HubError or RoomError.
    """
    path = Path(heads)
    if path.exists() or path.suffix in SUFFIXES or not hub.looks_like_a_name(heads):
        return path
    return fetch(heads)


def fetch(repository: str) -> Path:
    """Raises HubError or RoomError."""
    return hub.choose(repository, lambda names: wanted_files(repository, names))


def wanted_files(name: str, names: Sequence[str]) -> list[str]:
    """The files of a repository that the engine would read from a folder. Raises HubError."""
    for pattern in FILES:
        if found := [file for file in names if fnmatch(file, pattern) and "/" not in file]:
            return [*found, *(file for file in names if file == "config.json")]
    raise HubError(f"{name}: a repository without heads: none of {', '.join(FILES)} in it")
