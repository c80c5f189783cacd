"""How long ordinary prompts wait to be tokenized beside the longest that are not refused by their length."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from statistics import median

import psutil

from engine import Request, SamplingParams
from engine.llama.model import Model
from engine.text.prompt_encoder import PromptEncoder
from tests.benchmarks.inference.schemas import ALONE, BESIDE, HOSTILE, HOSTILE_S, quantiles_ms
from tests.support.measuring.report import Report

CONTEXT = 8192  # tokens, as a worker's KV cache by default
SHORT = "Name the three primary colours."
WORDS = "hello world "


def measure(model_path: Path, report: Report) -> None:
    """Seconds from a prompt's arrival to its tokens, and the memory of the process."""
    model = Model(str(model_path))
    encoder = PromptEncoder(model, most_tokens=CONTEXT)
    seen = CONTEXT * (model.longest_piece or 1) - 1  # characters without spaces
    long = WORDS * (seen // len(WORDS.replace(" ", "")))
    alone = [_seconds(encoder, SHORT) for _ in range(200)]
    long_s = median(_seconds(encoder, long) for _ in range(3))
    before = most = psutil.Process().memory_info().rss
    over = threading.Event()
    took: list[float] = []

    def ask() -> None:
        while not over.is_set():
            took.append(_seconds(encoder, long))

    hostile = [threading.Thread(target=ask) for _ in range(HOSTILE)]
    for thread in hostile:
        thread.start()
    waits = []
    ends = time.monotonic() + HOSTILE_S
    while time.monotonic() < ends:
        waits.append(_seconds(encoder, SHORT))
        most = max(most, psutil.Process().memory_info().rss)
        time.sleep(0.01)
    over.set()
    for thread in hostile:
        thread.join()
    with report.table("long-prompts", "what waits", *ALONE, *BESIDE) as table:
        table.row("a short prompt", *quantiles_ms(alone), *quantiles_ms(waits))
        table.note(
            f"Beside: {HOSTILE} requests at a time with prompts of {len(long):,} characters, the longest "
            f"that their length does not refuse, of which {len(took)} ended; alone, one takes "
            f"{long_s * 1e3:.0f} ms. Memory of the process: {before >> 20} MiB before, at most "
            f"{most >> 20} MiB."
        )


def _seconds(encoder: PromptEncoder, text: str) -> float:
    began = time.perf_counter()
    encoder.encode(Request(id="r", prompt=text, raw=True, sampling=SamplingParams()))
    return time.perf_counter() - began
