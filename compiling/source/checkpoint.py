"""Reads a Hugging Face folder: its weight files, whether they are complete, and their number format."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from compiling.base.errors import SourceError

PICKLES_READER = Path(__file__).with_name("pickle_child.py")  # runs in its own process: it imports torch
SAFETENSORS, PICKLES = ("model", ".safetensors"), ("pytorch_model", ".bin")
TOKENIZERS = ("tokenizer.model", "tokenizer.json", "vocab.json", "vocab.txt", "*.tiktoken", "tekken.json")
SETTINGS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
INDEX = ".index.json"  # of weights in several files
LFS_POINTER = b"version https://git-lfs"
PART = re.compile(r".*-(\d{5})-of-(\d{5})\.\w+")
FORMATS = {"F32": "f32", "F64": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "bf16", "F8_E5M2": "bf16"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """dtype: safetensors' name. size: count of numbers."""

    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete folder. files: those with the weights."""

    folder: Path
    name: str
    files: tuple[Path, ...]
    tensors: tuple[Tensor, ...]

    @property
    def format(self) -> str:
        """f32, f16 or bf16: the format of most weights, which config.json may state wrongly."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors:
            counts[tensor.dtype] += tensor.size
        return FORMATS.get(counts.most_common(1)[0][0], "f16")

    @property
    def numbers(self) -> int:
        return sum(tensor.size for tensor in self.tensors)

    @property
    def largest(self) -> int:
        """Numbers in its largest tensor."""
        return max(tensor.size for tensor in self.tensors)


def read_checkpoint(folder: Path, name: str) -> Checkpoint:
    """Check a folder without reading its weights. Raises SourceError for a missing or damaged file."""
    read_settings(folder)
    files = tuple(folder / file for file in _weight_files(folder))
    for file in files:
        _check_whole(file)
    pickled = files[0].suffix == ".bin"
    tensors = read_pickles(files) if pickled else [one for file in files for one in _safetensors(file)]
    if not tensors:
        raise SourceError(f"{folder}: its files hold no tensors")
    check_tokenizer(folder)
    return Checkpoint(folder, name, files, tuple(tensors))


def read_settings(folder: Path) -> dict[str, Any]:
    """Its config.json. Raises SourceError."""
    config = folder / "config.json"
    if not config.is_file():
        inside = " (give the GGUF itself)" if any(folder.glob("*.gguf")) else ""
        raise SourceError(f"{folder}: no config.json, so not a Hugging Face checkpoint{inside}")
    settings = _read_json(config)
    if not isinstance(settings, dict):
        raise SourceError(f"{config}: holds no settings")
    return settings


def check_tokenizer(folder: Path) -> None:
    """Check that a tokenizer's file exists and is not empty. Raises SourceError."""
    names = [path.name for path in folder.iterdir() if path.is_file()]
    found = [file for file in names if any(fnmatch(file, pattern) for pattern in TOKENIZERS)]
    if not found:
        raise SourceError(f"{folder}: no tokenizer (one of {', '.join(TOKENIZERS)})")
    for tokenizer in found:
        _check_whole(folder / tokenizer)


def wanted_files(names: Sequence[str]) -> list[str]:
    """The files of a repository that conversion reads: safetensors if there are any, otherwise pickles."""
    top = [name for name in names if "/" not in name]
    for stem, suffix in (SAFETENSORS, PICKLES):
        weights = [name for name in top if name.startswith(stem) and name.endswith(suffix)]
        if weights:
            break
    settings = [name for name in top if any(fnmatch(name, pattern) for pattern in SETTINGS)]
    return [*settings, *weights]


def _weight_files(folder: Path) -> list[str]:
    for stem, suffix in (SAFETENSORS, PICKLES):
        index = folder / f"{stem}{suffix}{INDEX}"
        found = sorted(path.name for path in folder.glob(f"{stem}*{suffix}"))
        if index.is_file():
            named = _named_in(index)
            _refuse_missing(folder, [file for file in named if not (folder / file).is_file()], len(named))
            return named
        if found:
            _refuse_missing(folder, _parts_missing(found), len(found))
            return found
    raise SourceError(f"{folder}: no weights: neither model*.safetensors nor pytorch_model*.bin")


def _named_in(index: Path) -> list[str]:
    content = _read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places:
        raise SourceError(f"{index}: names no files")
    files = sorted(set(places.values()), key=str)
    for file in files:
        if not isinstance(file, str) or Path(file).name != file:
            raise SourceError(f"{index}: names {file!r}, which is not a file of the folder")
    return files


def _parts_missing(found: Iterable[str]) -> list[str]:
    """Missing files of series such as NAME-00001-of-00003."""
    missing = []
    for file in found:
        if match := PART.fullmatch(file):
            parts = (f"-{part:05}-of-" for part in range(1, int(match[2]) + 1))
            missing += [file.replace(f"-{match[1]}-of-", part) for part in parts]
    return sorted(set(missing) - set(found))


def _refuse_missing(folder: Path, missing: Sequence[str], count: int) -> None:
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SourceError(f"{folder}: half-downloaded: {missing[0]}{others} of {count} files missing")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SourceError(f"{path}: not JSON, so damaged or cut off: {error}") from error


def _check_whole(file: Path) -> None:
    """Raises SourceError for an empty file or a Git LFS pointer."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(LFS_POINTER))
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from error
    if not start:
        raise SourceError(f"{file}: empty, so half-downloaded")
    if start == LFS_POINTER:
        raise SourceError(f"{file}: only a pointer of Git LFS; fetch the file with git lfs pull")


def _safetensors(file: Path) -> list[Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as content:
            slices = [content.get_slice(name) for name in content.keys()]  # noqa: SIM118, not a dict
            return [Tensor(one.get_dtype(), _product(one.get_shape())) for one in slices]
    except (SafetensorError, OSError) as error:
        raise SourceError(f"{file}: damaged or cut off: {error}") from error


def read_pickles(files: Sequence[Path]) -> list[Tensor]:
    """The tensors of PyTorch files, read in another process. No code in them is run. Raises SourceError."""
    for file in files:
        if not zipfile.is_zipfile(file):
            raise SourceError(
                f"{file}: cut off, or not of PyTorch 1.6 or newer; save the model again as safetensors"
            )
    command = [sys.executable, "-P", str(PICKLES_READER), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise SourceError(lines[-1] if lines else f"{files[0]}: cannot be read")
    return [Tensor(dtype, size) for dtype, size in json.loads(done.stdout)]


def _product(shape: Sequence[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
