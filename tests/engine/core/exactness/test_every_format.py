"""What a request gets does not depend on how many others run: to the bit, in formats whose kernels take many
rows in another way than few.

In a process of its own, since llama.cpp chooses some kernels once for each process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from engine import Completion, Request
from engine.weights.quantise import requantise
from tests.engine.helpers.drive import alone, completions, fresh, in_turn, prompts, run
from tests.engine.helpers.tiny import write_tiny_gguf

pytestmark = pytest.mark.slow

WIDTH, FEED_FORWARD = 512, 512  # rows of several blocks of 256
REQUESTS = 64
FORMATS = ("q6_k", "q4_k_m", "iq4_xs", "q5_1")
FURTHER = ("q8_0", "q4_0", "iq4_nl", "q5_k_m", "q3_k_m", "q2_k", "iq3_s")
SAMPLERS: dict[str, dict[str, object]] = {"greedy": {}, "warm": {"temperature": 0.8, "top_p": 0.9}}


def further(*values: object) -> list[object]:
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


@pytest.fixture(scope="module")
def apart() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plain model and one of experts, wide enough for all formats."""
    folder = tmp_path_factory.mktemp("wide")
    for name, experts in (("plain", 0), ("experts", 4)):
        write_tiny_gguf(folder / f"{name}.gguf", width=WIDTH, feed_forward=FEED_FORWARD, experts=experts)
    return folder


def requests(count: int) -> list[Request]:
    return in_turn(prompts(count, seed=3, most=12), SAMPLERS, max_tokens=3, logprobs=3)


def differing(path: str, count: int, slots: int) -> list[str]:
    """The requests whose tokens or log-probabilities change with the others beside them."""
    config = {"batch_invariant": True, "weights": "as_shipped", "kv_type": "f16", "threads": 1}
    reference = alone(path, requests(REQUESTS), **config)
    found = completions(run(fresh(path, slots=slots, kv_cells=8192, **config), requests(count)))
    return [name for name, one in found.items() if said(one) != said(reference[name])]


def said(answer: Completion) -> object:
    return answer.tokens, answer.logprobs


@pytest.mark.parametrize("rows", [1, 4, 8, 12, 64])
@pytest.mark.parametrize("model", ["plain", *further("experts")])
@pytest.mark.parametrize("format", [*FORMATS, *further(*FURTHER)])
def test_batched_equals_single_to_the_bit(
    apart: ProcessPoolExecutor, models: Path, format: str, model: str, rows: int
) -> None:
    path = models / f"{model}-{format}.gguf"
    if not path.exists():
        requantise(str(models / f"{model}.gguf"), str(path), format, threads=1)
    slots = min(rows, 62)  # as many as the mode allows
    assert apart.submit(differing, str(path), rows, slots).result() == []
