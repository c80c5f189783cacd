"""Chat templates for GGUFs that have none: packaged ones by name, or a file."""

from __future__ import annotations

from pathlib import Path

from engine.base.errors import ModelLoadError

_FOLDER = Path(__file__).parent / "templates"
SUFFIX = ".jinja"


def known() -> list[str]:
    """Names of the packaged templates."""
    return sorted(path.stem for path in _FOLDER.glob(f"*{SUFFIX}"))


def find(name: str) -> Path:
    """Path of a packaged template, or of a file. Raises ModelLoadError."""
    path = _FOLDER / f"{name}{SUFFIX}" if name in known() else Path(name)
    if not path.is_file():
        raise ModelLoadError(
            f"{name}: neither a file with a chat template nor the name of one that is known: "
            f"{', '.join(known())}"
        )
    return path


def read(name: str) -> str:
    """The Jinja text of a packaged template, or of a file. Raises ModelLoadError."""
    path = find(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: the chat template cannot be read: {error}") from error
    if not text.strip():
        raise ModelLoadError(f"{path}: holds no chat template, it is empty")
    return text


def missing(model: str) -> str:
    """The warning for a GGUF without a template. model: its path."""
    likely = [name for name in known() if name in Path(model).name.lower()]
    cure = f"its name asks for {likely[0]}" if likely else f"a file, or one of {', '.join(known())}"
    return f"no chat template in it: set chat_template ({cure}), or prompts are continued, not answered"
