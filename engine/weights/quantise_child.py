"""The child process that quantises: it can be killed at any time, and llama.cpp may abort it.

The job comes as an argument, the importance matrix through standard input; llama.cpp's log goes to standard
output as it comes, an error on a line of its own after ERROR.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys

import numpy as np

from engine.weights.quantise import ERROR, LOG_LEVEL_ERROR, call_llama


def _forward_log(level: int, text: str) -> None:
    sys.stdout.write(f"\n{ERROR}{text.strip()}\n" if level == LOG_LEVEL_ERROR else text)
    sys.stdout.flush()


def main() -> int:
    """0 when the file is written."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which kills this process
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends at its next output once the parent is gone
    job = json.loads(sys.argv[1])
    os.nice(job.pop("niceness"))
    given = sys.stdin.buffer.read()
    matrix = dict(np.load(io.BytesIO(given))) if given else None
    return call_llama(**job, importance=matrix, log=_forward_log)


if __name__ == "__main__":
    sys.exit(main())
