"""Files that a command writes at its end: refused before the work begins where they cannot be."""

from __future__ import annotations

from pathlib import Path

from cli.errors import BadInput, writing


def check_writable(option: str, path: Path) -> None:
    """Raises BadInput, which names the option."""
    try:
        if path.is_dir():
            raise BadInput(f"{option}: {path} is a folder")
        if not path.parent.is_dir():
            raise BadInput(f"{option}: the folder {path.parent} does not exist")
    except OSError as error:  # a name that is too long, for one
        raise BadInput(f"{option}: cannot write {path}: {error.strerror}") from None


def write(path: Path, content: bytes) -> None:
    """Raises CliError."""
    with writing(path):
        path.write_bytes(content)
