"""The GGUF that a compilation starts from: a given one, or the conversion of a checkpoint.

A conversion works in a folder beside its result, `NAME-FORMAT.gguf.part`, and moves the whole file out at its
end; what a killed one left there goes at the next start. `NAME-FORMAT.gguf.source` says what it is made from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import psutil

from compiling import converter, hub, room
from compiling.checkpoint import Checkpoint, read_checkpoint, wanted_files
from compiling.errors import RoomError, SourceError
from compiling.progress import Progress
from compiling.staging import stage
from engine.errors import ModelLoadError
from engine.model import read_shape

NUMBER_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
VOCABULARY_BYTES = 64_000_000  # more than any tokenizer takes in a GGUF
PROCESS_BYTES = 800_000_000  # of the converter before it reads a tensor
TENSOR_COPIES = 4  # of the largest tensor, each in 32 bits: the most that was seen while one is converted
PART_OF_GGUF = re.compile(r".*-\d{5}-of-(\d{5})\.gguf")


def prepare(source: str, folder: Path, *, progress: Progress, reserve: int = 0) -> Path:
    """The GGUF of a source: a GGUF, a checkpoint's folder or a hub's name; of a checkpoint, made once.

    reserve: bytes of disk that must stay free for what follows. Raises HubError, SourceError, ConverterError
    and RoomError.
    """
    path = Path(source)
    if path.is_file():
        return _given(path)
    if path.is_dir():
        checkpoint = read_checkpoint(path, path.resolve().name)
    elif hub.looks_like_a_name(source) and not source.endswith(".gguf"):
        progress.plan(1)
        progress.begin(f"fetching {source}")
        checkpoint = read_checkpoint(hub.choose(source, wanted_files), source.rpartition("/")[2])
    else:
        raise SourceError(f"{source}: no such file or folder, nor a hub's name as organisation/repository")
    return _Conversion(checkpoint, folder).run(progress, reserve)


def _given(path: Path) -> Path:
    if match := PART_OF_GGUF.fullmatch(path.name):
        raise SourceError(
            f"{path}: one of {int(match[1])} parts; join them with llama.cpp's llama-gguf-split --merge first"
        )
    _check_gguf(path)
    return path


def _check_gguf(path: Path) -> None:
    """Whether the runtime knows it, as far as its header and its length tell."""
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
        self._bytes = checkpoint.numbers * NUMBER_BYTES[checkpoint.format]

    def run(self, progress: Progress, reserve: int) -> Path:
        room.make_folder(self._folder)
        shutil.rmtree(self._work, ignore_errors=True)
        if self._is_made():
            return self._target
        if self._target.exists() and not self._note.exists():
            raise SourceError(
                f"{self._target}: there already, and not converted by this command; move it away"
            )
        self._check_room(reserve)
        found = converter.find(progress)
        progress.plan(1)
        progress.begin(f"converting {self._checkpoint.name} to {self._checkpoint.format.upper()}")
        try:
            made = self._convert(found, progress)
            self._note.write_text(json.dumps(self._identity(made)), encoding="utf-8")
            made.replace(self._target)
        except OSError as error:
            raise RoomError(f"{self._target}: cannot be written: {error.strerror}") from error
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        return self._target

    def _convert(self, found: Path, progress: Progress) -> Path:
        """The vocabulary alone first, which takes seconds and finds a tokenizer that is not known."""
        staging, made = self._work / "checkpoint", self._work / "model.gguf"
        stage(self._checkpoint.folder, staging)
        name, outtype = self._checkpoint.name, self._checkpoint.format
        vocabulary = converter.Job(staging, name, self._work / "vocabulary.gguf", outtype, vocab_only=True)
        whole = converter.Job(staging, name, made, outtype)
        converter.run(found, [vocabulary, whole], progress, self._bytes)
        _check_gguf(made)
        with made.open("rb+") as stream:
            os.fsync(stream.fileno())
        return made

    def _check_room(self, reserve: int) -> None:
        needed, free = self._bytes + VOCABULARY_BYTES, shutil.disk_usage(self._folder).free
        if needed + reserve > free:
            follows = f" and {room.size(reserve)} for what follows" if reserve else ""
            raise RoomError(
                f"{self._folder}: {room.size(needed)} of disk are needed for {self._target.name}{follows}, "
                f"{room.size(free)} are free"
            )
        needed = PROCESS_BYTES + TENSOR_COPIES * 4 * self._checkpoint.largest
        free = psutil.virtual_memory().available
        if needed > free:
            raise RoomError(
                f"{self._checkpoint.folder}: {room.size(needed)} of memory are needed to convert it, "
                f"{room.size(free)} are free"
            )

    def _identity(self, made: Path) -> dict[str, Any]:
        """Of what it is made from, by what, and of the file made."""
        folder = self._checkpoint.folder
        settings = [folder / name for name in wanted_files([path.name for path in folder.iterdir()])]
        files = {path.name: _stamp(path) for path in {*settings, *self._checkpoint.files}}
        return {
            "files": dict(sorted(files.items())),
            "converter": converter.runtime_version(),
            "result": _stamp(made),
        }

    def _is_made(self) -> bool:
        try:
            known = json.loads(self._note.read_text(encoding="utf-8"))
            return bool(known == self._identity(self._target))
        except (OSError, ValueError):
            return False


def _stamp(path: Path) -> list[int]:
    """Size in bytes and time of the last change in nanoseconds."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
