"""Small files that are replaced whole."""

from __future__ import annotations

from pathlib import Path

from cli.errors import writing
from tasks.durable import sync, sync_folder


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file, whole or not at all. Raises CliError."""
    part = path.with_name(f"{path.name}.part")
    with writing(path):
        with part.open("wb") as file:
            file.write(content)
            sync(file)
        part.replace(path)
        sync_folder(path.parent)
