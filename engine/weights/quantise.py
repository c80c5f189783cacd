"""Writes weights in another number format, with llama.cpp's quantiser."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from common.atomic_write import atomic_path
from common.processor import usable_cores
from engine.base.errors import ModelLoadError
from engine.llama.log import collect_log
from engine.llama.model import check_file
from engine.weights.formats import (
    FORMATS,
    Format,
    Importance,
    Tensor,
    check_importance,
    fitting,
    read_plan,
    read_progress,
    unfit,
)

__all__ = ["FORMATS", "Importance", "quantised_size", "requantise", "tensor_shapes", "unfit_tensors"]

Progress = Callable[[int, int], None]  # tensors done, and all of them
ALIGNMENT = 32  # bytes; where a tensor begins in a GGUF that does not say otherwise
LOG_LEVEL_ERROR = 4  # GGML_LOG_LEVEL_ERROR of ggml.h, which the bindings leave out
WRITE_FAILED = "basic_ios"  # in what the C++ library says of a file that it could not write to
LEAST_URGENT = 19  # niceness of a process
ERROR = "error: "  # before llama.cpp's complaints, in what the child process says


def requantise(
    path: str,
    target: str,
    format: str,
    threads: int = 0,
    *,
    importance: Importance | None = None,
    progress: Progress | None = None,
    in_background: bool = False,
) -> None:
    """Write the GGUF `path` to `target` in one of FORMATS, whole or not at all. Raises ModelLoadError.

    Refuses a format that the tensors' shapes do not allow, since llama.cpp would silently take another one.
    importance: see engine/weights/importance_matrix.py; the coarser the format, the more it helps.
    in_background: at the lowest priority. An exception of progress stops the work. The work is done in a
    child process, which ends at the next tensor if this process is killed; its partial file is removed by the
    next call for the same target.
    """
    check_file(path)
    _check(path, format, importance)
    try:
        with atomic_path(Path(target), durable=True) as part:
            job = {"path": path, "target": str(part), "format": format, "threads": threads}
            job["niceness"] = LEAST_URGENT if in_background else 0
            _run(path, job, importance, progress)
    except OSError as error:
        raise ModelLoadError(f"{target}: cannot be written: {error.strerror}") from error


def unfit_tensors(path: str, format: str) -> list[Tensor]:
    """The tensors for which llama.cpp would silently take another format, because of their row length.

    Raises ModelLoadError.
    """
    return unfit(_plan(path, format)[0], _known(format))


def quantised_size(path: str, format: str, *, with_importance: bool = False) -> int:
    """Bytes of the file that requantise() would write, with an importance matrix or without.

    Some formats mix types differently with one. Overestimates split models by some hundred bytes.
    Raises ModelLoadError.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    def stored(shape: tuple[int, ...], type: str) -> int:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[type.upper()]]
        return -(-int(np.prod(shape)) // block * size // ALIGNMENT) * ALIGNMENT

    plan, log = _plan(path, format, with_importance)
    added = sum(len(key) + 16 for key in _KEYS if key not in log)
    size = sum(file.stat().st_size for file in _files(path))
    described = size - sum(stored(t.shape, t.before) for t in plan)
    return described + -(-added // ALIGNMENT) * ALIGNMENT + sum(stored(t.shape, t.after) for t in plan)


def tensor_shapes(path: str) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors, row length first. Raises ModelLoadError."""
    return {tensor.name: tensor.shape for tensor in _plan(path, "f32")[0]}


# Metadata that llama.cpp adds if missing; each key takes 16 bytes beside its name.
_KEYS = ("general.quantization_version", "general.file_type")


def _files(path: str) -> list[Path]:
    """All files of a split model whose first file this is, or the file itself."""
    numbered = re.search(r"-00001-of-(\d{5})\.gguf$", path)
    if numbered is None:
        return [Path(path)]
    stem, count = path[: numbered.start()], numbered[1]
    return [Path(f"{stem}-{k:05}-of-{count}.gguf") for k in range(1, int(count) + 1)]


# Checks


def _known(format: str) -> Format:
    try:
        return FORMATS[format]
    except KeyError:
        raise ModelLoadError(f"no number format {format}: known are {', '.join(FORMATS)}") from None


def _check(path: str, name: str, importance: Importance | None) -> None:
    format = _known(name)
    if format.needs_importance and importance is None:
        raise ModelLoadError(f"{path}: {name} needs an importance matrix, or its outputs would be garbage")
    if format.block == 1:
        return  # fits any shape, and asks for no matrix
    plan, _ = _plan(path, name, importance is not None)
    if misfits := unfit(plan, format):
        fit = ", ".join(fitting({tensor.shape[0] for tensor in misfits}))
        raise ModelLoadError(
            f"{path}: cannot be written as {name}, which packs {format.block} weights of a row together: "
            f"they do not divide the rows of {misfits[0]}, and of {len(misfits)} of {len(plan)} tensors; "
            f"formats that fit: {fit}"
        )
    if importance is not None:
        check_importance(path, name, plan, importance)


# llama.cpp


def call_llama(
    path: str,
    target: str,
    format: str,
    threads: int = 0,
    importance: Importance | None = None,
    log: Callable[[int, str], None] = lambda _level, _text: None,
    dry_run: bool = False,
) -> int:
    """Run llama.cpp's quantiser in this process; returns 0 on success. log: called with level and text."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FORMATS[format].number
    params.nthread = threads or usable_cores()
    params.allow_requantize = True
    params.dry_run = dry_run
    kept = [
        (name.encode(), np.ascontiguousarray(v, dtype=np.float32)) for name, v in (importance or {}).items()
    ]
    entries = (llama_cpp.llama_model_imatrix_data * (len(kept) + 1))()  # the last, without a name, ends it
    for entry, (name, values) in zip(entries, kept, strict=False):
        entry.name, entry.size = name, values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if kept:
        params.imatrix = entries

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def forward(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
        log(level, text.decode("utf-8", "replace"))

    llama_cpp.llama_log_set(forward, ctypes.c_void_p(0))
    try:
        return int(
            llama_cpp.llama_model_quantize(os.fsencode(path), os.fsencode(target), ctypes.byref(params))
        )
    finally:
        collect_log()


def _plan(path: str, format: str, with_importance: bool = False) -> tuple[list[Tensor], str]:
    """(tensors, log) of a dry run, which reads no weights."""
    check_file(path)
    known = _known(format)
    said: list[str] = []
    errors: list[str] = []

    def log(level: int, text: str) -> None:
        (errors if level == LOG_LEVEL_ERROR else said).append(text)

    any_matrix = {"": np.ones(1, np.float32)} if with_importance or known.needs_importance else None
    if call_llama(path, "", format, importance=any_matrix, log=log, dry_run=True) != 0:
        raise _refused(path, format, [text.strip() for text in errors])
    return read_plan("".join(said), known), "".join(said)


def _refused(path: str, format: str, errors: list[str]) -> ModelLoadError:
    # Its first complaint is the cause, later ones only follow from it.
    cause = next(filter(None, errors), "no reason given")
    return ModelLoadError(f"{path}: llama.cpp cannot write it as {format}: {cause}")


# The child process


def _run(path: str, job: dict[str, Any], importance: Importance | None, progress: Progress | None) -> None:
    command = [sys.executable, "-P", "-m", "engine.weights.quantise_child", json.dumps(job)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    errors, last = [], ""
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=env) as child:
        try:
            _send(importance, child)
            for raw in child.stdout or ():
                line = raw.decode("utf-8", "replace")
                if line.startswith(ERROR):
                    errors.append(line.removeprefix(ERROR).strip())
                elif progress and (done := read_progress(line)):
                    progress(*done)
                last = line.strip() or last
        except BaseException:
            child.kill()
            raise
    if any(WRITE_FAILED in error for error in errors):
        raise OSError(errno.ENOSPC, "is the disk full?")
    if child.returncode:
        raise _refused(path, job["format"], errors or [f"its process ended with {child.returncode}: {last}"])


def _send(importance: Importance | None, child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None, "a pipe was asked for"
    arrays: dict[str, Any] = dict(importance or {})
    with suppress(BrokenPipeError), child.stdin:  # then its exit tells why
        if arrays:
            np.savez(child.stdin, **arrays)
