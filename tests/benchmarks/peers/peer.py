"""A peer as a process: it loads the model, says how long that took, and answers jobs, one a line of JSON.

A job names prompts as token ids, how many are in flight at once, and how many tokens each answer has.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.benchmarks.baselines.llama_server import OPENMP_DEFAULT
from tests.benchmarks.common import Throughput, ToolFailed, last_words

HERE = Path(__file__).parent
STOP_LIMIT_S = 30.0


class Peer:
    """A context manager. load_s: seconds that it took to load the model."""

    def __init__(self, python: Path, script: str, *words: object) -> None:
        """Starts it and waits until it has loaded. Raises ToolFailed."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in _close()
        env = {name: value for name, value in os.environ.items() if name not in OPENMP_DEFAULT}
        self._process = subprocess.Popen(
            [str(python), str(HERE / script), *map(str, words)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.load_s = float(self._read()["load_s"])
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def _close(self) -> None:
        with self._log, self._process as process:  # which closes its pipes, and waits
            assert process.stdin
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def answer(self, prompts: Sequence[Sequence[int]], at_once: int, tokens: int) -> Throughput:
        """Raises ToolFailed."""
        job = {"prompts": prompts, "at_once": at_once, "tokens": tokens}
        assert self._process.stdin
        with suppress(BrokenPipeError):  # what it said last is read
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        found = self._read()
        return Throughput(len(prompts), sum(map(len, prompts)), found["generated"], found["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        if line := self._process.stdout.readline():
            found: dict[str, Any] = json.loads(line)
            return found
        self._process.wait()
        self._log.seek(0)
        raise ToolFailed(f"ended: {last_words(self._log.read().decode(errors='replace'))}")
