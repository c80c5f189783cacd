"""The GGUF that a compilation starts from: a given one, or the conversion of a checkpoint.

A conversion works in a folder beside its result, `NAME-FORMAT.gguf.part`, and renames the complete file at
its end; the next start removes what a killed one left. `NAME-FORMAT.gguf.source` records what it was made
from.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common.atomic_write import sync_path
from compiling.base import resource_check
from compiling.base.errors import RoomError, SourceError
from compiling.base.formats import least_bytes
from compiling.base.progress import Progress
from compiling.source import converter, hub, preflight
from compiling.source.checkpoint import Checkpoint, read_checkpoint, wanted_files
from compiling.source.staging import stage
from engine.base.errors import ModelLoadError
from engine.llama.model import read_shape

PART_OF_GGUF = re.compile(r".*-\d{5}-of-(\d{5})\.gguf")


def prepare(source: str, folder: Path, *, progress: Progress, types: Sequence[str] | None = ()) -> Path:
    """The GGUF of a source: a GGUF, a checkpoint's folder or a hub's name. A checkpoint is converted once.

    types: the types to be made from it and measured, for which disk and memory are checked, too; None is the
    default ones. Raises HubError, SourceError, ConverterError and RoomError.
    """
    path = Path(source)
    if path.is_file():
        return _given(path)
    if path.is_dir():
        checkpoint = read_checkpoint(path, path.resolve().name)
    elif hub.looks_like_a_name(source) and not source.endswith(".gguf"):
        progress.say(f"fetching {source}")  # the hub's client shows its own progress bars
        check = partial(preflight.check, source, folder=folder, progress=progress, types=types)
        fetched = hub.choose(source, wanted_files, check)
        checkpoint = read_checkpoint(fetched, source.rpartition("/")[2])
    else:
        raise SourceError(f"{source}: no such file or folder, nor a hub's name as organisation/repository")
    return _Conversion(checkpoint, folder).run(progress, types)


def _given(path: Path) -> Path:
    if match := PART_OF_GGUF.fullmatch(path.name):
        raise SourceError(
            f"{path}: one of {int(match[1])} parts; join them with llama.cpp's llama-gguf-split --merge first"
        )
    _check_gguf(path)
    return path


def _check_gguf(path: Path) -> None:
    """Check header and length of a GGUF. Raises SourceError."""
    try:
        read_shape(str(path))
    except ModelLoadError as error:
        raise SourceError(error.message) from error


class _Conversion:
    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self._checkpoint = checkpoint
        self._folder = folder
        self._target = folder / f"{checkpoint.name}-{checkpoint.format}.gguf"
        self._work = folder / f"{self._target.name}.part"
        self._note = folder / f"{self._target.name}.source"

    def run(self, progress: Progress, types: Sequence[str] | None) -> Path:
        resource_check.make_folder(self._folder)
        shutil.rmtree(self._work, ignore_errors=True)
        if self._is_made():
            return self._target
        if self._target.exists() and not self._is_ours():
            raise SourceError(f"{self._target}: exists, and is not as this command wrote it; move it")
        wanted = self._wanted(types)
        resource_check.check_conversion(wanted, self._folder)
        found = converter.find(progress)
        progress.plan(1)
        progress.begin(f"converting {self._checkpoint.name} to {self._checkpoint.format.upper()}")
        try:
            made = self._convert(found, progress, wanted.bytes)
            self._target.unlink(missing_ok=True)  # of another checkpoint; its note is replaced next
            self._note.write_text(json.dumps(self._identity(made)), encoding="utf-8")
            made.replace(self._target)
        except OSError as error:
            raise RoomError(f"{self._target}: cannot be written: {error.strerror}") from error
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        return self._target

    def _wanted(self, types: Sequence[str] | None) -> resource_check.Conversion:
        checkpoint = self._checkpoint
        numbers, format = checkpoint.numbers, checkpoint.format
        follows = least_bytes(types, numbers, format)
        return resource_check.Conversion(checkpoint.name, numbers, format, checkpoint.largest, follows)

    def _convert(self, found: Path, progress: Progress, expected: int) -> Path:
        """Convert the vocabulary first: it takes seconds, and fails for an unknown tokenizer."""
        staging, made = self._work / "checkpoint", self._work / "model.gguf"
        stage(self._checkpoint.folder, staging)
        name, outtype = self._checkpoint.name, self._checkpoint.format
        vocabulary = converter.Job(staging, name, self._work / "vocabulary.gguf", outtype, vocab_only=True)
        whole = converter.Job(staging, name, made, outtype)
        converter.run(found, [vocabulary, whole], progress, expected)
        _check_gguf(made)
        sync_path(made)
        return made

    def _identity(self, made: Path) -> dict[str, Any]:
        """The checkpoint's files, the converter's version, and the stamp of the result."""
        folder = self._checkpoint.folder
        settings = [folder / name for name in wanted_files([path.name for path in folder.iterdir()])]
        files = {path.name: _stamp(path) for path in {*settings, *self._checkpoint.files}}
        return {
            "files": dict(sorted(files.items())),
            "converter": converter.runtime_version(),
            "result": _stamp(made),
        }

    def _noted(self) -> dict[str, Any]:
        try:
            return {**json.loads(self._note.read_text(encoding="utf-8"))}
        except (OSError, ValueError, TypeError):
            return {}

    def _is_made(self) -> bool:
        return self._target.exists() and self._noted() == self._identity(self._target)

    def _is_ours(self) -> bool:
        return self._noted().get("result") == _stamp(self._target)


def _stamp(path: Path) -> list[int]:
    """Size in bytes and modification time in nanoseconds."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
