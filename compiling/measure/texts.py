"""The text over which quality is measured: fixed, written for this project, of many kinds."""

from __future__ import annotations

from pathlib import Path

from compiling.base.errors import SourceError

PASSAGES_FILE = Path(__file__).with_name("passages.txt")
PASSAGES = PASSAGES_FILE.read_text(encoding="utf-8")


def read_text(path: Path) -> str:
    """Read a UTF-8 text. Raises SourceError if it cannot be read or has fewer than two words."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: not UTF-8 text") from None
    if len(text.split()) < 2:
        raise SourceError(f"{path}: holds no text to measure with")
    return text
