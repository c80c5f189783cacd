"""The GGUF that a compilation starts from."""

from __future__ import annotations

from pathlib import Path

from compiling.errors import SourceError
from compiling.progress import Progress


def prepare(source: str, folder: Path, *, progress: Progress) -> Path:  # noqa: ARG001
    """A given GGUF itself. Raises SourceError."""
    if not Path(source).is_file():
        raise SourceError(f"{source}: no such file")
    return Path(source)
