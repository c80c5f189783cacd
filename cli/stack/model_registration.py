"""Finds and checks the files for `medusaq models add`: a GGUF, draft heads and a chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from cli.base.errors import BadInput, CliError

GGUF = ".gguf"
HUB = "hf:"
USUAL_TYPE = "Q4_K_M"  # taken of a repository with several, as llama.cpp does
PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
VISION = "mmproj"  # how the names of image encoders begin, which lie beside models


def find_model(source: str) -> Path:
    """Find a GGUF and check that it can be served; fetch it if it is on the hub.

    Raises CliError, ModelLoadError and CompileError.
    """
    from engine.llama.model import read_shape

    path = Path(source).expanduser()
    if source.startswith(HUB):
        path = _from_hub(source)
    elif path.is_dir():
        names = [str(p.relative_to(path)) for p in sorted(path.rglob(f"*{GGUF}"))]
        path = path / _only(source, names)
    elif not path.exists() and _is_hub_name(source):
        raise BadInput(f"{source}: no such file; a repository on the hub is {HUB}{source}")
    read_shape(str(path))
    return path


def find_heads(source: str) -> Path:
    """A file or folder of heads. Raises CliError and CompileError."""
    if source.startswith(HUB):
        from compiling.source.hub_heads import fetch

        if not _is_hub_name(repository := source.removeprefix(HUB)):
            raise BadInput(f"{source}: not {HUB}ORGANISATION/REPOSITORY")
        return fetch(repository)
    path = Path(source).expanduser()
    if path.exists():
        return path
    asked = f"; a repository on the hub is {HUB}{source}" if _is_hub_name(source) else ""
    raise CliError(f"{source}: no such file or folder{asked}")


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


def _from_hub(source: str) -> Path:
    """Fetch one GGUF of a repository, or use a cached one of just this type if the hub is away."""
    from compiling.source.hub import choose

    repository, _, wanted = source.removeprefix(HUB).partition(":")
    if not _is_hub_name(repository):
        raise BadInput(f"{source}: not {HUB}ORGANISATION/REPOSITORY, with or without :TYPE, such as :Q4_K_M")
    chosen: list[str] = []

    def pick(names: Sequence[str]) -> list[str]:
        chosen.append(_of_type(source, repository, names, wanted))
        return chosen

    folder = choose(repository, pick)
    if not chosen:
        kept = [str(path.relative_to(folder)) for path in folder.rglob(f"*{GGUF}")]
        chosen += [name for name in kept if _is_type(name, wanted or USUAL_TYPE)]
        if len(chosen) != 1:
            raise CliError(f"{source}: the hub cannot be reached, and there is no cached copy of that file")
    return folder / chosen[0]


def _of_type(source: str, repository: str, names: Sequence[str], wanted: str) -> str:
    """The GGUF of the wanted number format or name; of several, that of the usual one."""
    models = sorted(name for name in names if name.endswith(GGUF) and not Path(name).name.startswith(VISION))
    if not models:
        raise CliError(_NONE.format(source, repository))
    found = [name for name in models if not wanted or _is_type(name, wanted)]
    if len(found) > 1:
        found = [name for name in found if _is_type(name, USUAL_TYPE)] or found
    if found and all(map(PART.search, found)):
        raise BadInput(f"{source}: {found[0]} is a part of a split GGUF; choose another, or join the parts")
    if len(found) != 1:
        offered = ", ".join(name for name in found or models if not PART.search(name))
        raise BadInput(f"{source}: choose one with {HUB}{repository}:NAME.gguf: {offered}")
    return found[0]


def _is_type(name: str, wanted: str) -> bool:
    """Whether a file has this name, or one with this number format in it as a word."""
    named = re.search(rf"(?<![a-z0-9]){re.escape(wanted.lower())}(?![a-z0-9_])", name.lower())
    return name == wanted or (named is not None and not wanted.endswith(GGUF))


_NONE = "{} has no GGUF: make one of a checkpoint with `medusaq compile {} -o DIR`"


def _only(source: str, names: list[str]) -> str:
    """The only one of these files."""
    if not names:
        raise CliError(_NONE.format(source, source))
    if len(names) > 1:
        raise BadInput(f"{source} has several GGUFs; give the path of one: {', '.join(names)}")
    return names[0]


def _is_hub_name(source: str) -> bool:
    from compiling.source.hub import looks_like_a_name

    return looks_like_a_name(source)
