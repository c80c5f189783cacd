"""Collects in several processes, each with its own cores and its own part of the prompts.

On two cores, two processes of one thread generate a sixth more than one of two threads: no thread waits for
another at every layer.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_longlong
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from common.processor import usable_cores
from engine import EngineError, ModelLoadError
from training.base.errors import CollectionError, TrainingError
from training.base.progress import Display
from training.collection.collect import CollectOptions, collect
from training.collection.shards import IDENTITY
from training.prompts.prompts import read_prompts

POLL_S = 0.5
_counts: list[c_longlong] = []  # tokens of each part, as its process counts them


def collections_in(folders: Iterable[Path]) -> tuple[Path, ...]:
    """The collections that these folders are, or hold the parts of. Raises CollectionError without any."""
    found: list[Path] = []
    for folder in folders:
        within = sorted(
            path.parent for path in (folder / IDENTITY, *folder.glob(f"*/{IDENTITY}")) if path.exists()
        )
        if not within:
            raise CollectionError(f"{folder} holds no collected states")
        found += within
    return tuple(found)


def collect_parts(options: CollectOptions, processes: int, console: Console) -> tuple[Path, ...]:
    """Collect in up to `processes` processes, at most one per prompt; return the folders of the parts.

    Resumes from what is collected. Raises TrainingError or EngineError.
    """
    if processes > usable_cores():
        raise CollectionError(f"{processes} processes need as many cores, and there are {usable_cores()}")
    processes = min(processes, len(read_prompts(options.prompts)))
    if processes == 1:
        collect(options, console)
        return (options.out,)
    parts = [
        replace(
            options,
            out=options.out / f"part-{k}",
            part=(k, processes),
            tokens=-(-options.tokens // processes),
            seed=options.seed + k,
            threads=1 if not options.threads else options.threads,
        )
        for k in range(processes)
    ]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    spawn = multiprocessing.get_context("spawn")
    # Without locks, which a killed process would never release.
    counts = [spawn.Value("q", 0, lock=False) for _ in parts]
    with (
        ProcessPoolExecutor(processes, spawn, _begin, (counts,)) as pool,
        Display(console, "tokens", options.tokens) as display,
    ):
        try:
            running = {pool.submit(_collect_part, part, cores) for part in parts}
            while running:
                ended, running = wait(running, POLL_S, return_when="FIRST_EXCEPTION")
                _raise_failures(ended)
                # The pool does not watch a process that it started after its watcher thread (CPython 3.11).
                if any(process.exitcode for process in tuple(pool._processes.values())):
                    raise BrokenProcessPool
                display.update(sum(count.value for count in counts))
        except BaseException as error:
            for process in tuple(pool._processes.values()):
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise CollectionError(
                    "a collecting process was killed; the same command goes on from what is collected"
                ) from None
            raise
    return tuple(part.out for part in parts)


def _raise_failures(ended: set[Future[None]]) -> None:
    for future in ended:
        future.result()


def _begin(counts: list[c_longlong]) -> None:
    """Initialize a new process: store the counters, and exit when the parent does."""
    _counts.extend(counts)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _collect_part(options: CollectOptions, cores: list[int]) -> None:
    """cores: all cores, of which this part takes its share. A process may run several parts."""
    k, parts = options.part
    if cores:
        os.sched_setaffinity(0, cores[k::parts])
    counter = _counts[k]

    def note(tokens: int) -> None:
        counter.value = tokens

    try:
        collect(options, Console(quiet=True), note)
    except ModelLoadError:
        raise
    except EngineError as error:  # the other subclasses cannot be unpickled
        raise TrainingError(error.message) from None
