"""Two processes that each serve the same model on one device, at once: the same answers as of one alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from engine import Completion, EngineConfig
from engine.service import EngineService
from tests.engine.helpers.drive import prompts, request
from tests.engine.helpers.tiny import write_tiny_gguf

REQUESTS = 24
LIMIT_S = 900.0


def measure(folder: Path) -> Iterator[str]:
    model = write_tiny_gguf(folder / "tiny.gguf")
    [(expected, alone_s)] = _run(model, processes=1)
    both = _run(model, processes=2)
    same = sum(answers == expected for answers, _ in both)
    seconds = " and ".join(f"{took:.3g}" for _, took in both)
    yield f"{same} of 2 gave the answers of one alone; they took {seconds} s, and one alone {alone_s:.3g} s"


def _run(model: str, processes: int) -> list[tuple[list[list[int]], float]]:
    """The answers of each, and the seconds they took. Raises CalledProcessError when one fails."""
    command = [sys.executable, "-m", "tests.gpu.measures.workers", model]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    told = []
    for process in started:
        output, _ = process.communicate(timeout=LIMIT_S)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        told.append(tuple(json.loads(output.splitlines()[-1])))
    return told


def serve(model: str) -> tuple[list[tuple[int, ...]], float]:
    """As a worker does: submitted all at once."""
    service = EngineService(EngineConfig(model=model, slots=8, kv_cells=4096, speculation=False))
    began = time.perf_counter()
    try:
        futures = [service.submit(request(f"r{i}", text)) for i, text in enumerate(prompts(REQUESTS))]
        answers: list[Completion] = [future.result(LIMIT_S) for future in futures]
        return [answer.tokens for answer in answers], time.perf_counter() - began
    finally:
        service.close()


if __name__ == "__main__":
    print(json.dumps(serve(sys.argv[1])))
