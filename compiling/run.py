"""A compilation: make the files, measure them against the source, recommend one; resumable at every step."""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compiling import child, room
from compiling.errors import CompileError
from compiling.formats import EXACT, Source, check_names, chosen_types, read_source
from compiling.progress import Progress
from compiling.quality import LOGIT_BYTES, MOST_TOKENS, Quality
from compiling.recommend import Candidate, Load, Recommendation, recommend
from compiling.record import Record, digest
from compiling.source import prepare
from compiling.speed import Speed
from compiling.texts import PASSAGES_FILE, read_text
from engine.measured import identity, machine
from engine.model import build
from engine.quantise import Importance, quantised_size, requantise

ROUNDS = 3  # of speed: single ones differ by a tenth on a machine with neighbours
MAX_KL = 0.02  # nats a token; see docs/compile.md
WORK = "work"  # folder of what is needed meanwhile
AS_SHIPPED = "source"
REFERENCE = "exact values"  # in the record, beside the types


def bulk(speed: Speed) -> float:
    return speed.bulk_per_s


def alone(speed: Speed) -> float:
    return speed.alone_per_s


COUNTS = {Load.BULK: bulk, Load.ONE: alone}  # tokens a second, under each load


@dataclass(frozen=True, slots=True)
class Options:
    """source: a GGUF, or what compiling.source can make one of. types: None is a sensible set. imatrix and
    text: files of text. keep: the files of all types stay, not of the recommended one alone. threads: 0 is
    every core.
    """

    source: str
    folder: Path
    types: tuple[str, ...] | None = None
    imatrix: Path | None = None
    text: Path | None = None
    max_kl: float = MAX_KL
    load: Load = Load.BULK
    threads: int = 0
    rounds: int = ROUNDS
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One measured file. speeds: of each round."""

    type: str
    path: str
    bytes: int
    quality: Quality
    speeds: tuple[Speed, ...]

    @property
    def speed(self) -> Speed:
        """The median of each figure; the most memory."""
        each = self.speeds
        rows = {n: statistics.median(one.row_s[n] for one in each) for n in each[0].row_s}
        return Speed(
            load_s=statistics.median(one.load_s for one in each),
            row_s=rows,
            prefill_per_s=statistics.median(one.prefill_per_s for one in each),
            bulk_per_s=statistics.median(one.bulk_per_s for one in each),
            peak_bytes=max(one.peak_bytes for one in each),
        )

    def ratio(self, base: Row, value: Callable[[Speed], float]) -> float:
        """To the base, round by round, since both were then measured within minutes; the median."""
        pairs = zip(self.speeds, base.speeds, strict=True)
        return statistics.median(value(own) / value(other) for own, other in pairs)


@dataclass(frozen=True, slots=True)
class Compiled:
    """rows: the source as it is first, then the types. exact: quality of the source's exact values."""

    source: Source
    rows: tuple[Row, ...]
    exact: Quality
    recommendation: Recommendation
    options: Options
    machine: str
    build: str
    left_out: tuple[str, ...]

    @property
    def recommended(self) -> Row:
        return next(row for row in self.rows if row.type == self.recommendation.type)


def compile_model(options: Options, progress: Progress) -> Compiled:
    """Raises CompileError or EngineError; repeating goes on from what is done."""
    for text in (options.text, options.imatrix):
        if text is not None:
            read_text(text)
    if options.types is not None:
        check_names(options.types, options.imatrix is not None)
    room.make_folder(options.folder)
    record = Record(options.folder)
    source = read_source(_gguf(options, progress))
    types, left_out = chosen_types(options.types, source, options.imatrix is not None)
    for line in left_out:
        progress.say(line)
    return _Run(options, source, types, left_out, record, progress).run()


def _gguf(options: Options, progress: Progress) -> str:
    """The source as a GGUF, which is made if need be."""
    return str(prepare(options.source, options.folder, progress=progress))


class _Run:
    """One compilation whose options hold."""

    def __init__(
        self,
        options: Options,
        source: Source,
        types: Sequence[str],
        left_out: Sequence[str],
        record: Record,
        progress: Progress,
    ) -> None:
        self._options = options
        self._source = source
        self._types = tuple(types)
        self._left_out = tuple(left_out)
        self._record = record
        self._progress = progress
        self._work = options.folder / WORK
        self._text = options.text or PASSAGES_FILE
        self._own = identity(source.path)
        self._where = [machine(), build()]
        self._rated = [read_text(self._text), *self._where]
        self._reference = self._work / f"reference-{digest(self._own, self._rated)}.f32"
        self._exact = self._work / f"exact-{digest(self._own)}.gguf"
        self._weighed = None if options.imatrix is None else read_text(options.imatrix)
        self._matrix = self._work / f"importance-{digest(self._own, self._weighed, *self._where)}.npz"
        self._base = f"{AS_SHIPPED} ({source.type})"

    def run(self) -> Compiled:
        self._clear()
        self._check_room()
        steps = self._steps()
        self._progress.plan(len(steps))
        for what, step in steps:
            self._progress.begin(what)
            step()
        rows = self._rows()
        candidates = [self._candidate(row, rows[0]) for row in rows]
        recommendation = recommend(candidates, self._options.load, self._options.max_kl)
        self._keep(recommendation.type)
        shutil.rmtree(self._work, ignore_errors=True)
        return Compiled(
            source=self._source,
            rows=rows,
            exact=Quality(**self._known("quality", REFERENCE)),
            recommendation=recommendation,
            options=self._options,
            machine=self._where[0],
            build=self._where[1],
            left_out=self._left_out,
        )

    # What there is, and what is missing

    @property
    def _all(self) -> tuple[str, ...]:
        return (self._base, *self._types)

    def path(self, type: str) -> Path:
        """Of the file of this type, whether or not it is there."""
        if type == self._base:
            return Path(self._source.path)
        stem = re.sub(rf"[.-]{self._source.type}$", "", Path(self._source.path).stem, flags=re.IGNORECASE)
        return self._options.folder / f"{stem}.{type}.gguf"

    def _about(self, kind: str, type: str, number: int = 0) -> list[object]:
        about: list[object] = [self._own, type, self._weighed if type in self._types else None]
        if kind == "quality":
            return [*about, self._rated]
        return [*about, *self._where, self._options.threads, number] if kind == "speed" else about

    def _known(self, kind: str, type: str, number: int = 0) -> Any:
        return self._record.get(kind, *self._about(kind, type, number))

    def _there(self, type: str) -> bool:
        """Whether its file was made, and is still what was made."""
        path = self.path(type)
        return path.exists() and self._known("made", type) == identity(str(path))

    def _unmeasured(self, type: str) -> bool:
        rounds = range(self._options.rounds)
        return not (
            self._known("quality", type) and all(self._known("speed", type, number) for number in rounds)
        )

    def _to_make(self) -> list[str]:
        return [
            type
            for type in self._types
            if not self._there(type) and (self._options.keep or self._unmeasured(type))
        ]

    @property
    def _lacks_reference(self) -> bool:
        if not self._known("quality", REFERENCE):
            return True
        return any(not self._known("quality", type) for type in self._all) and not self._reference.exists()

    # Before the work

    def _clear(self) -> None:
        """What work broken off has left half-written; raises CompileError for files that others made."""
        self._work.mkdir(exist_ok=True)
        for left in (
            *self._work.glob("*.part"),
            *(part for type in self._types for part in _parts(self.path(type))),
            *(set(self._work.glob("reference-*.f32")) - {self._reference}),
            *(set(self._work.glob("exact-*.gguf")) - {self._exact}),
            *(set(self._work.glob("importance-*.npz")) - {self._matrix}),
        ):
            left.unlink(missing_ok=True)
        for type in self._types:
            path = self.path(type)
            if path.exists() and self._record.get("begun", path.name) is None:
                raise CompileError(f"{path}: exists and was not made here; move it, or give another folder")

    def _check_room(self) -> None:
        source = self._source
        sizes = {type: self._size(type) for type in self._types}
        making = sum(sizes[type] for type in self._to_make())
        logits = exact = 0
        if self._lacks_reference:
            count = min(self._text.stat().st_size, MOST_TOKENS) + len(self._where)
            logits = count * source.vocab_size * LOGIT_BYTES
            exact = 0 if source.exact or self._exact.exists() else self._size(EXACT)
        room.check_disk(self._options.folder, logits + max(exact, making))
        loaded = [sizes[type] for type in self._types if self._unmeasured(type)]
        if self._unmeasured(self._base):
            loaded.append(source.bytes)
        if loaded or self._lacks_reference:
            room.check_memory(max(exact, source.bytes if exact else 0, *loaded), source.cell_bytes)

    def _size(self, type: str) -> int:
        weighed = self._weighed is not None and type != EXACT
        return quantised_size(self._source.path, type, with_importance=weighed)

    # The work

    def _steps(self) -> list[tuple[str, Callable[[], None]]]:
        steps: list[tuple[str, Callable[[], None]]] = []
        if self._lacks_reference:
            if not self._source.exact and not self._exact.exists():
                steps.append(("the source's exact values", self._unpack))
            steps.append(("outputs of the source's exact values", self._refer))
        if self._weighed is not None and self._to_make() and not self._matrix.exists():
            steps.append(("importance matrix", self._weigh))
        steps += [(f"{type}: writing", partial(self._make, type)) for type in self._to_make()]
        for type in self._all:
            if not self._known("quality", type) and not (type == self._base and self._source.exact):
                steps.append((f"{type}: quality", partial(self._rate, type)))
        for number in range(self._options.rounds):
            for type in self._all:
                if not self._known("speed", type, number):
                    what = f"{type}: speed, round {number + 1} of {self._options.rounds}"
                    steps.append((what, partial(self._time, type, number)))
        return steps

    def _ask(self, module: str, path: Path, *arguments: str) -> Any:
        threads = ["--threads", str(self._options.threads)]
        return child.ask(f"compiling.{module}", [str(path), *arguments, *threads], self._progress.note)

    def _unpack(self) -> None:
        self._write(self._exact, EXACT)

    def _refer(self) -> None:
        path = Path(self._source.path) if self._source.exact else self._exact
        arguments = ("--reference", str(self._reference), "--text", str(self._text), "--write")
        found = self._ask("quality", path, *arguments)
        for type in (REFERENCE, self._base) if self._source.exact else (REFERENCE,):
            self._record.put("quality", found, *self._about("quality", type))
        self._exact.unlink(missing_ok=True)

    def _weigh(self) -> None:
        assert self._options.imatrix is not None
        arguments = ("--text", str(self._options.imatrix), "--target", str(self._matrix))
        self._ask("weighing", Path(self._source.path), *arguments)

    def _make(self, type: str) -> None:
        path = self.path(type)
        self._record.put("begun", True, path.name)
        matrix = None
        if self._weighed is not None:
            if not self._matrix.exists():  # where a file is made again after all was measured
                self._weigh()
            with np.load(self._matrix) as kept:
                matrix = dict(kept)
        self._write(path, type, matrix)
        self._record.put("made", identity(str(path)), *self._about("made", type))

    def _write(self, path: Path, type: str, importance: Importance | None = None) -> None:
        def note(done: int, of: int) -> None:
            self._progress.note(done / of)

        threads = self._options.threads
        requantise(self._source.path, str(path), type, threads, importance=importance, progress=note)

    def _rate(self, type: str) -> None:
        arguments = ("--reference", str(self._reference), "--text", str(self._text))
        found = self._ask("quality", self.path(type), *arguments)
        self._record.put("quality", found, *self._about("quality", type))

    def _time(self, type: str, number: int) -> None:
        found = self._ask("speed", self.path(type))
        self._record.put("speed", found, *self._about("speed", type, number))

    def _keep(self, recommended: str) -> None:
        """All, or the recommended one alone, which is made again where it went."""
        if self._options.keep:
            return
        for type in self._types:
            if type != recommended:
                self.path(type).unlink(missing_ok=True)
        if recommended in self._types and not self._there(recommended):
            self._make(recommended)

    # The result

    def _rows(self) -> tuple[Row, ...]:
        return tuple(self._row(type) for type in self._all)

    def _row(self, type: str) -> Row:
        speeds = (Speed.of(self._known("speed", type, number)) for number in range(self._options.rounds))
        path = self.path(type)
        size = path.stat().st_size if path.exists() else self._size(type)
        return Row(type, str(path), size, Quality(**self._known("quality", type)), tuple(speeds))

    def _candidate(self, row: Row, base: Row) -> Candidate:
        value = COUNTS[self._options.load]
        return Candidate(row.type, row.quality.kl, value(row.speed), row.ratio(base, value), row.bytes)


def _parts(path: Path) -> list[Path]:
    """What a process that was killed left of this file."""
    return [part for part in path.parent.glob("*.part") if part.name.startswith(f"{path.name}.")]
