"""Tokens a second of the packaged model, on the device and on the processor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from engine.core.engine import Engine
from tests.engine.helpers.drive import QUESTIONS, fresh, request, submit

TOGETHER = (1, 16)
MOST_TOKENS = 64  # of an answer
LIMIT_S = 20.0  # of steps; the first is left out, in which a device compiles its kernels


def measure(_folder: Path) -> Iterator[str]:
    for where, gpu_layers in (("device", -1), ("processor", 0)):
        engine = fresh(None, slots=max(TOGETHER), kv_cells=4096, gpu_layers=gpu_layers)
        speeds = [f"{tokens_per_s(engine, n):.3g} with {n}" for n in TOGETHER]
        yield f"{where}: tokens/s of requests together: {', '.join(speeds)}"


def tokens_per_s(engine: Engine, requests: int) -> float:
    """Of so many requests, without their prompts and without drafts."""
    texts = (QUESTIONS * requests)[:requests]
    submit(engine, *(request(f"{requests}-{i}", t, max_tokens=MOST_TOKENS) for i, t in enumerate(texts)))
    while engine.step().ready < requests:
        pass
    began, emitted = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < LIMIT_S or not emitted:
        report = engine.step()
        emitted += report.emitted
        if report.ended:
            took = time.perf_counter() - began
            break
    for sequence in list(engine.scheduler.sequences()):
        sequence.cancelled = True
    while not engine.idle:
        engine.step()
    return emitted / took
