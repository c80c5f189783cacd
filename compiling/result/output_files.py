"""The output files of a compilation: their paths, and whether they are unchanged since they were written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from compiling.base.errors import CompileError
from compiling.base.formats import Source
from compiling.base.state import Record


class MadeFiles:
    """The files of one source in a folder. key: what a type's file depends on besides the source's name."""

    def __init__(
        self, folder: Path, source: Source, record: Record, key: Callable[[str], list[object]]
    ) -> None:
        self._folder = folder
        self._stem = re.sub(rf"[.-]{source.type}$", "", Path(source.path).stem, flags=re.IGNORECASE)
        self._record = record
        self._key = key

    def path(self, type: str) -> Path:
        """The path of the file of this type, which need not exist."""
        return self._folder / f"{self._stem}.{type}.gguf"

    def there(self, type: str) -> bool:
        """Whether the file was written and is unchanged."""
        stamp = _stamp(self.path(type))
        return stamp is not None and self._record.get("made", *self._key(type)) == stamp

    def check(self, types: Sequence[str]) -> None:
        """Raises CompileError for files that another program created or changed."""
        for path in map(self.path, types):
            if not path.exists():
                continue
            if self._record.get("begun", path.name) is None:
                raise CompileError(f"{path}: exists and was not made here; move it, or give another folder")
            if self._record.get("ended", path.name) not in (None, _stamp(path)):
                raise CompileError(f"{path}: was changed since it was made; move it, or give another folder")

    def parts(self, type: str) -> list[Path]:
        """Partial files that a killed process left."""
        path = self.path(type)
        return [part for part in path.parent.glob("*.part") if part.name.startswith(f"{path.name}.")]

    def begin(self, type: str) -> Path:
        """Record that the file is about to be written, so that a partial one is known to be ours."""
        path = self.path(type)
        self._record.put("ended", None, path.name)
        self._record.put("begun", True, path.name)
        return path

    def end(self, type: str) -> None:
        """Record that the file is complete."""
        path = self.path(type)
        self._record.put("ended", _stamp(path), path.name)
        self._record.put("made", _stamp(path), *self._key(type))


def _stamp(path: Path) -> list[int] | None:
    """Size in bytes and modification time in nanoseconds; None if the file does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return [status.st_size, status.st_mtime_ns]
