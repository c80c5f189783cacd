"""Run a command that dies with its parent: `python -I -S die_with_parent.py PARENT_PID COMMAND...`

Linux only (PR_SET_PDEATHSIG survives exec); elsewhere the command just runs. A separate process instead of a
preexec_fn, because forking Python code from a threaded program may deadlock. Only the standard library: it is
started with -I -S, so that it takes only about 10 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    die_with_parent()
    if os.getppid() != parent:  # the parent died before prctl took effect
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
