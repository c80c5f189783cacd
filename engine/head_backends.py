"""What runs the heads, torch or ONNX Runtime: the faster where both are there, timed once a machine."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from engine.config import AUTO, ONNX, TORCH
from engine.head_layouts import HeadsLoadError, files_of
from engine.head_source import Heads
from engine.head_weights import LmHead, naming
from engine.measured import keep, machine, recall

MODULES = {ONNX: "onnxruntime", TORCH: "torch"}  # what a backend needs
ROWS = (1, 4, 16)  # states at once: of a lone request, and of several
TOP = 4
REPEATS = 12
KEPT = "heads_backends"  # kind of file in the cache
ONNX_SUFFIX = ".onnx"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Heads, and in words what runs them."""

    heads: Heads
    backend: str


@dataclass(frozen=True, slots=True)
class _Way:
    """To run heads."""

    backend: str
    threads: int

    def __str__(self) -> str:
        return f"{self.backend} on {self.threads} thread{'s' * (self.threads > 1)}"


@dataclass(frozen=True, slots=True)
class _File:
    """Of heads, to be loaded for a model of this width and vocabulary."""

    path: str
    width: int
    vocab_size: int

    def load(self, way: _Way, lm_head: LmHead) -> Heads:
        """Raises HeadsLoadError."""
        load: Callable[..., Heads]
        try:
            if way.backend == TORCH:
                from engine.heads import MedusaHeads

                load = MedusaHeads.load
            else:
                from engine.onnx_heads import OnnxHeads

                load = OnnxHeads.load
        except ImportError as error:
            raise HeadsLoadError(
                f"{MODULES[way.backend]} is installed and cannot be imported: {error}"
            ) from error
        return load(
            self.path,
            width=self.width,
            vocab_size=self.vocab_size,
            lm_head=lm_head,
            threads=way.threads,
        )

    @property
    def identity(self) -> tuple[object, ...]:
        """Tells it from others, and from what it was before, without reading it. Raises HeadsLoadError."""
        with naming(self.path):
            files = [(file.resolve(), file.stat()) for file in files_of(Path(self.path))]
        parts = [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in files]
        return *parts, self.width, self.vocab_size


def load_heads(
    path: str, *, width: int, vocab_size: int, lm_head: LmHead, backend: str = AUTO, threads: int = 1
) -> Loaded:
    """Heads from a file or folder for a model of this width and vocabulary. Raises HeadsLoadError.

    lm_head gives the model's rows of these token ids, or all. backend: auto takes the faster. threads:
    most that heads may use.
    """
    file, ways = _File(path, width, vocab_size), _ways(path, backend, threads)
    if fastest := _fastest(file, ways, threads):
        return Loaded(file.load(fastest, lm_head), str(fastest))
    loaded = _all_that_load(file, ways, lm_head)
    seconds = time_heads(loaded, width)
    name = min(seconds, key=lambda name: seconds[name])
    told = ", ".join(f"{other} {s * 1e3:.2f} ms" for other, s in seconds.items())
    log.info("heads run by %s; a state and head takes %s", name, told)
    keep(KEPT, _key(file, ways, threads), {"fastest": name, "seconds": seconds})
    return Loaded(loaded[name], name)


def modules_for(path: str, *, width: int, vocab_size: int, backend: str = AUTO, threads: int = 1) -> set[str]:
    """What load_heads() of the same would import: for the way that is known to be the fastest, or for all.

    Raises HeadsLoadError.
    """
    file, ways = _File(path, width, vocab_size), _ways(path, backend, threads)
    fastest = _fastest(file, ways, threads)
    return {MODULES[way.backend] for way in ([fastest] if fastest else ways)}


def _fastest(file: _File, ways: list[_Way], threads: int) -> _Way | None:
    """As far as it is known."""
    if len(ways) == 1:
        return ways[0]
    known = recall(KEPT, _key(file, ways, threads))
    return next((way for way in ways if known and known.get("fastest") == str(way)), None)


def _key(file: _File, ways: list[_Way], threads: int) -> str:
    versions = [version(MODULES[name]) for name in sorted({way.backend for way in ways})]
    return repr((file.identity, machine(), threads, versions))


def time_heads(loaded: Mapping[str, Heads], width: int) -> dict[str, float]:
    """Seconds a state, the mean over ROWS at once; in turns, so that the machine's moods strike all alike."""
    rng = np.random.default_rng(0)
    seconds = dict.fromkeys(loaded, 0.0)
    for rows in ROWS:
        hidden = rng.standard_normal((rows, width)).astype(np.float32)
        least = dict.fromkeys(loaded, float("inf"))
        for repeat in range(1 + REPEATS):
            for name, heads in loaded.items():
                began = time.perf_counter()
                heads.propose(hidden, 1, TOP)
                if repeat:  # the first one prepares
                    least[name] = min(least[name], time.perf_counter() - began)
        for name in seconds:
            seconds[name] += least[name] / rows / len(ROWS)
    return seconds


def _ways(path: str, backend: str, threads: int) -> list[_Way]:
    """Those that are installed and can run this file. Raises HeadsLoadError when there is none."""
    written = path.endswith(ONNX_SUFFIX)
    if written and backend == TORCH:
        raise HeadsLoadError(f"{path}: torch does not run ONNX files; MEDUSAQ_HEADS_BACKEND=onnx does")
    asked = [ONNX, TORCH] if backend == AUTO and not written else [ONNX if written else backend]
    there = [name for name in asked if _installed(MODULES[name])]
    if not there:
        needed = " or ".join(MODULES[name] for name in asked)
        extra = "train" if asked == [TORCH] else "medusa"
        raise HeadsLoadError(f"Medusa heads need {needed}: pip install 'medusaq[{extra}]'")
    # More threads help one ONNX session and hinder another; torch's are those of the whole process.
    counts = {ONNX: sorted({1, threads}), TORCH: [threads]}
    return [_Way(name, count) for name in there for count in counts[name]]


def _all_that_load(file: _File, ways: list[_Way], lm_head: LmHead) -> dict[str, Heads]:
    """By name. Raises HeadsLoadError when none does."""
    loaded: dict[str, Heads] = {}
    refusals = []
    for way in ways:
        try:
            loaded[str(way)] = file.load(way, lm_head)
        except HeadsLoadError as error:
            refusals.append(error)
            log.info("heads do not load for %s: %s", way, error.message)
    if not loaded:
        raise refusals[0]
    return loaded


def _installed(module: str) -> bool:
    """Not imported: that takes a second and a quarter of a gigabyte, for the slower one in vain."""
    return importlib.util.find_spec(module) is not None
