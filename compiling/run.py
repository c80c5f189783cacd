"""A compilation: makes the files, compares them with the source, recommends one. Resumes at every step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from compiling.base import resource_check
from compiling.base.formats import Source, check_names, chosen_types, read_source, unpacked_format
from compiling.base.progress import Progress
from compiling.base.state import Record, digest
from compiling.measure import child
from compiling.measure.quality import LOGIT_BYTES, Quality, most_rows
from compiling.measure.rounds import Rounds
from compiling.measure.texts import PASSAGES_FILE, read_text
from compiling.result.compilation import COUNTS, Compiled, Options, Row
from compiling.result.output_files import MadeFiles
from compiling.result.recommendation import Candidate, recommend
from compiling.source.source import prepare
from engine.host.measurement_cache import identity, machine
from engine.llama.model import build
from engine.weights.importance_matrix import check_text
from engine.weights.quantise import Importance, quantised_size, requantise

WORK = "work"  # folder of intermediate files
AS_SHIPPED = "source"
REFERENCE = "exact values"  # in the record, beside the types


def compile_model(options: Options, progress: Progress) -> Compiled:
    """Compile a model. Raises CompileError or EngineError; a repeated call resumes."""
    for text in (options.text, options.imatrix):
        if text is not None:
            read_text(text)
    if options.types is not None:
        options = replace(options, types=tuple(check_names(options.types, options.imatrix is not None)))
    resource_check.make_folder(options.folder)
    record = Record(options.folder)
    source = read_source(_gguf(options, progress))
    types, left_out = chosen_types(options.types, source, options.imatrix is not None)
    if options.imatrix is not None:
        check_text(source.path, options.imatrix)
    for line in left_out:
        progress.say(line)
    return _Run(options, source, types, left_out, record, progress).run()


def _gguf(options: Options, progress: Progress) -> str:
    """The path of the source as a GGUF, which is converted if necessary."""
    return str(prepare(options.source, options.folder, progress=progress, types=options.types))


class _Run:
    """One compilation with valid options."""

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
        self._files = MadeFiles(options.folder, source, record, partial(self._about, "made"))
        self._rounds = Rounds(record, self._speed_key, options.rounds)

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

    # Stored and missing results

    @property
    def _all(self) -> tuple[str, ...]:
        return (self._base, *self._types)

    def _path(self, type: str) -> Path:
        return Path(self._source.path) if type == self._base else self._files.path(type)

    def _about(self, kind: str, type: str) -> list[object]:
        about: list[object] = [self._own, type, self._weighed if type in self._types else None]
        return [*about, self._rated] if kind == "quality" else about

    def _speed_key(self, type: str) -> list[object]:
        return [*self._about("speed", type), *self._where, self._options.threads]

    def _known(self, kind: str, type: str) -> Any:
        return self._record.get(kind, *self._about(kind, type))

    def _unmeasured(self, type: str) -> bool:
        return not self._known("quality", type) or bool(self._rounds.missing(self._all))

    def _to_make(self) -> list[str]:
        return [
            type
            for type in self._types
            if not self._files.there(type) and (self._options.keep or self._unmeasured(type))
        ]

    @property
    def _lacks_reference(self) -> bool:
        if not self._known("quality", REFERENCE):
            return True
        return any(not self._known("quality", type) for type in self._all) and not self._reference.exists()

    @cached_property
    def _unpacked(self) -> str:
        """The format of the file of exact values. Takes as long as reading the source."""
        return unpacked_format(self._source.path)

    # Before the work

    def _clear(self) -> None:
        """Remove partial files of an interrupted run. Raises CompileError for files of other programs."""
        self._work.mkdir(exist_ok=True)
        for left in (
            *self._work.glob("*.part"),
            *(part for type in self._types for part in self._files.parts(type)),
            *(set(self._work.glob("reference-*.f32")) - {self._reference}),
            *(set(self._work.glob("exact-*.gguf")) - {self._exact}),
            *(set(self._work.glob("importance-*.npz")) - {self._matrix}),
        ):
            left.unlink(missing_ok=True)
        self._files.check(self._types)

    def _check_room(self) -> None:
        source = self._source
        sizes = {type: self._size(type) for type in self._types}
        making = sum(sizes[type] for type in self._to_make())
        logits = exact = 0
        if self._lacks_reference:
            logits = most_rows(self._text.stat().st_size) * source.vocab_size * LOGIT_BYTES
            exact = 0 if source.exact or self._exact.exists() else self._size(self._unpacked)
        resource_check.check_disk(self._options.folder, logits + max(exact, making))
        loaded = {f"the model as {type}": sizes[type] for type in self._types if self._unmeasured(type)}
        if self._unmeasured(self._base):
            loaded[source.path] = source.bytes
        if exact:
            loaded["the source's exact values"] = exact
        if loaded:
            largest = max(loaded, key=loaded.__getitem__)
            resource_check.check_memory(largest, loaded[largest], source.cell_bytes)

    def _size(self, type: str) -> int:
        weighed = self._weighed is not None and type in self._types
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
        for number in self._rounds.missing(self._all):
            for type in self._all:
                what = f"{type}: speed, round {number + 1} of {self._options.rounds}"
                steps.append((what, partial(self._time, type, number)))
        return steps

    def _ask(self, module: str, path: Path, *arguments: str) -> Any:
        threads = ["--threads", str(self._options.threads)]
        return child.ask(
            f"compiling.measure.{module}", [str(path), *arguments, *threads], self._progress.note
        )

    def _unpack(self) -> None:
        self._write(self._exact, self._unpacked)

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
        self._ask("importance", Path(self._source.path), *arguments)

    def _make(self, type: str) -> None:
        path = self._files.begin(type)
        matrix = None
        if self._weighed is not None:
            if not self._matrix.exists():  # a file is made again after all measurements
                self._weigh()
            with np.load(self._matrix) as kept:
                matrix = dict(kept)
        self._write(path, type, matrix)
        self._files.end(type)

    def _write(self, path: Path, type: str, importance: Importance | None = None) -> None:
        def note(done: int, of: int) -> None:
            self._progress.note(done / of)

        threads = self._options.threads
        requantise(self._source.path, str(path), type, threads, importance=importance, progress=note)

    def _rate(self, type: str) -> None:
        arguments = ("--reference", str(self._reference), "--text", str(self._text))
        found = self._ask("quality", self._path(type), *arguments)
        self._record.put("quality", found, *self._about("quality", type))

    def _time(self, type: str, number: int) -> None:
        self._rounds.put(type, number, self._ask("speed", self._path(type)))

    def _keep(self, recommended: str) -> None:
        """Unless all files are kept, delete all but the recommended one, which is rewritten if missing."""
        if self._options.keep:
            return
        for type in self._types:
            if type != recommended:
                self._path(type).unlink(missing_ok=True)
        if recommended in self._types and not self._files.there(recommended):
            self._make(recommended)

    # The result

    def _rows(self) -> tuple[Row, ...]:
        return tuple(self._row(type) for type in self._all)

    def _row(self, type: str) -> Row:
        path = self._path(type)
        size = path.stat().st_size if path.exists() else self._size(type)
        return Row(type, str(path), size, Quality(**self._known("quality", type)), self._rounds.speeds(type))

    def _candidate(self, row: Row, base: Row) -> Candidate:
        value = COUNTS[self._options.load]
        return Candidate(row.type, row.quality.kl, value(row.speed), row.ratio(base, value), row.bytes)
