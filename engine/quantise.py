"""The same weights in another number format, through llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import llama_cpp

from engine.errors import ModelLoadError
from engine.model import _collect_log, _log_lines, check_file, first_log_line

FORMATS = {
    "f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "bf16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
}


def requantise(path: str, target: str, format: str, threads: int = 0) -> None:
    """Write the GGUF `path` to `target` in one of FORMATS, whole or not at all. Raises ModelLoadError.

    From a coarse format to a finer one nothing is gained but speed, and next to nothing is lost.
    """
    check_file(path)
    llama_cpp.llama_log_set(_collect_log, ctypes.c_void_p(0))
    _log_lines.clear()
    part = f"{target}.{os.getpid()}.part"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FORMATS[format]
    params.nthread = threads
    params.allow_requantize = True
    try:
        Path(part).touch()  # names the cause where nothing can be written; llama.cpp does not
        status = llama_cpp.llama_model_quantize(path.encode(), part.encode(), ctypes.byref(params))
        if status != 0:
            raise ModelLoadError(f"{path}: llama.cpp cannot write it as {format}: {first_log_line()}")
        Path(part).replace(target)
    except OSError as error:
        raise ModelLoadError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        Path(part).unlink(missing_ok=True)
