"""llama.cpp's log: errors are kept, the rest is dropped."""

from __future__ import annotations

import ctypes
from collections import deque

import llama_cpp

_ERROR = 4  # GGML_LOG_LEVEL_ERROR of ggml.h, which the bindings leave out
_lines: deque[str] = deque(maxlen=20)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _collect(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    if level == _ERROR:
        _lines.append(text.decode("utf-8", "replace").strip())


def collect_log() -> None:
    """From now on, and forget the lines before."""
    llama_cpp.llama_log_set(_collect, ctypes.c_void_p(0))
    _lines.clear()


def first_log_line() -> str:
    """The first error since collect_log(): those after it follow from it."""
    return next(iter(_lines), "no reason given")
