"""compile.json: the finished parts of a compilation, so that an interrupted one can resume."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from common.atomic_write import atomic_write
from compiling.base.errors import CompileError, RoomError

NAME = "compile.json"


class Record:
    """Values by kind and by what they depend on. put() writes atomically and durably."""

    def __init__(self, folder: Path) -> None:
        """Raises CompileError for a damaged or foreign file."""
        self.path = folder / NAME
        self._content: dict[str, dict[str, Any]] = {}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            self._content = {kind: {**values} for kind, values in content.items()}
        except FileNotFoundError:
            pass
        except OSError as error:
            raise RoomError(f"{self.path}: cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, AttributeError):
            raise CompileError(
                f"{self.path}: damaged; remove it and the GGUFs beside it, or give another folder"
            ) from None

    def get(self, kind: str, *about: object) -> Any:
        """The stored value, or None."""
        return self._content.get(kind, {}).get(digest(*about))

    def put(self, kind: str, value: object, *about: object) -> None:
        """Store a value. Raises RoomError if the file cannot be written."""
        self._content.setdefault(kind, {})[digest(*about)] = value
        try:
            atomic_write(self.path, json.dumps(self._content, indent=1), durable=True)
        except OSError as error:
            raise RoomError(f"{self.path}: cannot be written: {error.strerror}") from None


def digest(*about: object) -> str:
    return hashlib.sha256(json.dumps(about, default=str).encode()).hexdigest()[:24]
