"""Collected tokens and hidden states on disk.

A collection is a folder with collection.json, which says what it was made from, and shards: folders of three
npy files. A shard is written to a temporary folder and renamed after fsync, so every shard is complete; a
killed process loses the answers that it had not yet written.

    sequences.npy  int64 [n, 4]           prompt number, prompt tokens, output tokens, 1 if sampled
    tokens.npy     int32 [sum p + o]      prompt then output, sequence after sequence
    hidden.npy     float16 [sum o, width] row i: state after the final norm from which output token i came
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic_write import atomic_write, sync_path
from training.base.errors import CollectionError

Tokens = NDArray[np.int32]
States = NDArray[np.float16]

SHARD_TOKENS = 16384  # output tokens: 19 MB for a width of 576, less than a minute of work on two cores
FORMAT = 2
IDENTITY = "collection.json"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One generated answer. hidden [output tokens, width]: output[i] came from row i. sampled: not greedy."""

    number: int  # of the prompt in its file; past the end for a further answer to the same prompt
    sampled: bool
    prompt: Tokens
    output: Tokens
    hidden: States


@dataclass(frozen=True, slots=True)
class Identity:
    """What a collection was made from. It can only be continued with the same."""

    model_sha256: str
    prompts_sha256: str
    seed: int
    max_tokens: int
    width: int
    vocab_size: int
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard, memory-mapped."""

    path: Path
    sequences: NDArray[np.int64]
    tokens: Tokens
    hidden: States

    def __iter__(self) -> Iterator[Recorded]:
        token = state = 0
        for number, prompt, output, sampled in self.sequences.tolist():
            yield Recorded(
                number,
                bool(sampled),
                self.tokens[token : token + prompt],
                self.tokens[token + prompt : token + prompt + output],
                self.hidden[state : state + output],
            )
            token += prompt + output
            state += output


class Collection:
    """A folder of shards. Its methods raise CollectionError if it is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None

    # Reading

    @property
    def identity(self) -> Identity:
        path = self.folder / IDENTITY
        try:
            return Identity(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise CollectionError(f"{self.folder} holds no collected states") from None
        except (OSError, ValueError, TypeError) as error:
            raise CollectionError(f"{path} cannot be read: {error}") from error

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("shard-[0-9][0-9][0-9][0-9][0-9]"))

    def shards(self) -> Iterator[Shard]:
        width = self.identity.width
        for path in self.paths():
            yield open_shard(path, width)

    def done(self) -> tuple[set[int], int]:
        """(numbers of the collected answers, count of their output tokens)."""
        numbers: set[int] = set()
        tokens = 0
        for shard in self.shards():
            numbers.update(shard.sequences[:, 0].tolist())
            tokens += len(shard.hidden)
        return numbers, tokens

    # Writing

    def begin(self, identity: Identity) -> None:
        """Lock the folder for this process, and check its identity. Raises CollectionError."""
        make_folder(self.folder)
        try:
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in self.folder.glob("*.part"):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            if not (self.folder / IDENTITY).exists():
                self._describe(identity)
        except BlockingIOError:
            raise CollectionError(f"another process is collecting into {self.folder}") from None
        except OSError as error:
            raise _unusable(self.folder, error) from error
        _check_same(self.folder, self.identity, identity)

    def _describe(self, identity: Identity) -> None:
        content = json.dumps(asdict(identity), indent=1) + "\n"
        atomic_write(self.folder / IDENTITY, content, durable=True)

    def write(self, answers: list[Recorded]) -> Path:
        """Add a shard durably. Raises CollectionError if it cannot be written.

        A call that is repeated with the same answers, after an interrupt, adds none.
        """
        path = self._place(answers)
        part = path.with_suffix(".part")
        arrays = {
            "sequences": np.array(
                [(a.number, len(a.prompt), len(a.output), a.sampled) for a in answers], np.int64
            ),
            "tokens": np.concatenate([part for a in answers for part in (a.prompt, a.output)]),
            "hidden": np.concatenate([a.hidden for a in answers]),
        }
        try:
            if not path.exists():
                part.mkdir(exist_ok=True)
                for name, array in arrays.items():
                    np.save(part / f"{name}.npy", array)
                    sync_path(part / f"{name}.npy")
                sync_path(part)
                part.rename(path)
            sync_path(self.folder)
        except OSError as error:
            raise CollectionError(f"cannot write {path}: {error.strerror}") from error
        return path

    def _place(self, answers: list[Recorded]) -> Path:
        """The path of the next shard, or of the last one if it holds exactly these answers."""
        paths = self.paths()
        if not paths:
            return self.folder / "shard-00000"
        last = open_shard(paths[-1], answers[0].hidden.shape[1])
        if last.sequences[:, 0].tolist() == [answer.number for answer in answers]:
            return last.path
        return self.folder / f"shard-{int(last.path.name.removeprefix('shard-')) + 1:05d}"

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def open_shard(path: Path, width: int) -> Shard:
    """Raises CollectionError if the shard is damaged, or its states have another width."""
    try:
        sequences, tokens, hidden = (
            np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in ("sequences", "tokens", "hidden")
        )
    except (OSError, ValueError) as error:
        raise CollectionError(f"{path} cannot be read: {error}") from error
    shapes = sequences.ndim == 2 and sequences.shape[1] == 4 and tokens.ndim == 1 and hidden.ndim == 2
    if not shapes or hidden.shape[1] != width:
        raise CollectionError(f"{path} is damaged: its arrays have the wrong shapes")
    if len(tokens) != sequences[:, 1:3].sum() or len(hidden) != sequences[:, 2].sum():
        raise CollectionError(f"{path} is damaged: its arrays do not belong together")
    return Shard(path, sequences, tokens, hidden)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents. Raises CollectionError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError) -> CollectionError:
    return CollectionError(f"cannot use the folder {folder}: {error.strerror}")


def _check_same(folder: Path, there: Identity, wanted: Identity) -> None:
    for name, value in asdict(wanted).items():
        found = getattr(there, name)
        if found != value:
            raise CollectionError(
                f"{folder} was collected with {name} {found}, not {value}: name another folder"
            )
