"""Runs measurements in child processes, so that the memory of one model does not count for the next.

A child writes JSON lines to its standard output: {"done": 0.4} as it goes, and {"result": ...} or
{"error": ...} at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from compiling.base.errors import CompileError, RoomError
from engine import EngineError

FOLLOW = "--follow"
Note = Callable[[float], None]  # called with the share that is done, 0 to 1


def ask(module: str, arguments: list[str], note: Note) -> Any:
    """Run `python -m module arguments` and return its result. Raises CompileError."""
    command = [sys.executable, "-P", "-m", module, *arguments, FOLLOW]
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as process,
    ):
        try:
            message = _listen(process, note)
        except BaseException:
            process.kill()
            raise
        process.wait()
        if "result" in message:
            return message["result"]
        if "error" in message:
            raise CompileError(message["error"])
        if process.returncode == -signal.SIGKILL:
            raise RoomError(f"measuring {arguments[0]} was killed by the system: too little memory?")
        complaints.seek(0)
        lines = complaints.read().decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {process.returncode}"
        raise CompileError(f"measuring {arguments[0]} failed: {why}")


def _listen(process: subprocess.Popen[str], note: Note) -> dict[str, Any]:
    assert process.stdout is not None
    message: dict[str, Any] = {}
    for line in process.stdout:
        message = json.loads(line)
        if "done" in message:
            note(message["done"])
    return message


def parser(description: str | None) -> argparse.ArgumentParser:
    """The argument parser of a child: file, threads."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("file", help="a GGUF")
    made.add_argument("--threads", type=int, default=0, help="0 is every core")
    made.add_argument(FOLLOW, action="store_true", help="end when standard input does")
    return made


def answer(work: Callable[[Note], Any], follow: bool) -> NoReturn:
    """In the child: do the work and print its result. follow: exit when the parent does."""
    if follow:
        threading.Thread(target=_follow, daemon=True).start()
    try:
        message = {"result": work(lambda share: _send({"done": share}))}
    except EngineError as error:
        message = {"error": error.message}
    except CompileError as error:
        message = {"error": str(error)}
    _send(message)
    os._exit(0 if "result" in message else 1)  # the thread may be waiting on standard input


def _send(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)


def _follow() -> None:
    """Exit when standard input closes: the parent keeps it open and writes nothing."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)
