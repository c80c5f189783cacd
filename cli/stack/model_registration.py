"""Finds and checks the files for `medusaq models add`: a GGUF, Medusa heads and a chat template."""

from __future__ import annotations

from pathlib import Path

from cli.base.errors import BadInput, CliError

GGUF = ".gguf"


def find_model(source: str, file: str | None) -> Path:
    """Find a GGUF and check that it can be served. file: its name, if there are several.

    Raises CliError, ModelLoadError and CompileError.
    """
    from engine.llama.model import read_shape

    path = Path(source).expanduser()
    if not path.exists() and _is_hub_name(source):
        path = _from_hub(source, file)
    elif path.is_dir():
        names = [str(p.relative_to(path)) for p in sorted(path.rglob(f"*{GGUF}"))]
        path = path / _only(source, names, file)
    elif file is not None:
        raise BadInput(f"--file is for folders and repositories; {source} is neither")
    read_shape(str(path))
    return path


def find_heads(source: str) -> Path:
    """A file or folder of heads. Raises CliError and CompileError."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    if not _is_hub_name(source):
        raise CliError(f"{source}: no such file or folder")
    from compiling.source.hub_heads import find

    return find(source)


def find_template(given: str) -> str:
    """The name of a built-in template, or the absolute path of a template file.

    Raises ModelLoadError.
    """
    from engine.text import chat_templates

    if given in chat_templates.known():
        return given
    path = str(Path(given).expanduser().absolute())
    chat_templates.read(path)
    return path


def check_heads(heads: Path, model: Path) -> None:
    """Raise HeadsLoadError if the heads are invalid, or for a model of another shape."""
    from engine.llama.model import read_shape
    from engine.medusa.loader import load_heads
    from engine.medusa.model_rows import ModelRows

    shape = read_shape(str(model))
    load_heads(
        str(heads),
        width=shape.width,
        vocab_size=shape.vocab_size,
        model_rows=ModelRows(str(model)),
    )


def _from_hub(source: str, file: str | None) -> Path:
    from compiling.source.hub import fetch, list_files

    chosen = _only(source, sorted(name for name in list_files(source) if name.endswith(GGUF)), file)
    return Path(fetch(source, [chosen])) / chosen


def _only(source: str, names: list[str], file: str | None) -> str:
    """The chosen one of these files, or the only one."""
    if not names:
        raise CliError(
            f"{source} has no GGUF: make one of a checkpoint with `medusaq compile {source} -o DIR`"
        )
    if file is None and len(names) > 1:
        raise BadInput(f"{source} has several GGUFs; choose with --file: {', '.join(names)}")
    if file is not None and file not in names:
        raise BadInput(f"{source} has no {file}; it has {', '.join(names)}")
    return file or names[0]


def _is_hub_name(source: str) -> bool:
    organisation, _, repository = source.partition("/")
    return bool(organisation and repository) and source.count("/") == 1 and organisation[0] not in ".~"
