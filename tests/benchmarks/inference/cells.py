"""Step time by the cells of each request: steps of the engine beside decode calls of llama.cpp alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from docs.measured.cells import Point
from engine import EngineConfig, Request, SamplingParams
from engine.base.config import AS_SHIPPED, DEFAULT_KV_CELLS
from engine.core.layout_setup import LANE_SHARE
from engine.core.layouts import LANE_SLACK
from engine.core.sequence import SequenceState
from tests.benchmarks.baselines import llama_batched_bench
from tests.benchmarks.common import ToolFailed
from tests.engine.helpers.drive import opened

CELLS = (100, 256, 500, 1000, 2000, 8000)
REQUESTS = (1, 4, 16, 32)
FEW_REQUESTS = (1, 16)  # of those who have many cells, or a large model
MANY_CELLS = 4000
LARGE, LARGE_FORMAT, LARGE_CELLS = "3B", "q4_k_m", (256, 2000)
STEPS = 16  # timed in each run
UNTIMED = 2  # tokens: of the step that lays the prompt into lanes, and of one that ends the requests
ROUND = 1024  # of MEDUSAQ_KV_CELLS


class Steps:
    """An engine whose lanes hold `longest` cells, to time steps in which each request has a row of one token.

    Raises ModelLoadError, and ToolFailed without memory for such lanes.
    """

    def __init__(self, model: Path, slots: int, longest: int) -> None:
        wanted = round((longest + UNTIMED + LANE_SLACK) / LANE_SHARE)
        self.kv_cells = max(DEFAULT_KV_CELLS, -(-wanted // ROUND) * ROUND)
        self._engine = opened(
            EngineConfig(
                model=str(model), weights=AS_SHIPPED, slots=slots, kv_cells=self.kv_cells, speculation=False
            )
        )
        lanes = self._engine.layouts.lanes
        if lanes is None or lanes.largest < longest + UNTIMED:
            lane = lanes.largest if lanes else 0
            raise ToolFailed(
                f"lanes have {lane} tokens and {longest + UNTIMED} are needed: too little memory, "
                "or a model of shorter context"
            )
        self.lane_cells = lanes.context.cells
        vocabulary = self._engine.model.vocab_size
        self._tokens = np.random.default_rng(1).integers(vocabulary, size=longest, dtype=np.int32)
        self._add(1, longest, 1)
        while not self._engine.idle:
            self._engine.step()  # from now on the prefix cache has the longest prompt, and so each of them

    def ms(self, requests: int, cells: int, steps: int = STEPS) -> float:
        """Milliseconds of a step, the mean of `steps`: in the last one, each row attends to `cells` cells."""
        engine = self._engine
        self._add(requests, cells - steps, steps + UNTIMED)
        engine.step()
        began = time.perf_counter()
        reports = [engine.step() for _ in range(steps)]
        took = time.perf_counter() - began
        running = engine.scheduler.running
        as_meant = all(each.rows == each.emitted == requests for each in reports) and all(
            each.computed == cells and each.layout is engine.layouts.lanes for each in running
        )
        if not as_meant or len(running) != requests:
            raise ToolFailed(f"not all of {requests} requests decoded one token in each of {steps} steps")
        while not engine.idle:
            engine.step()
        return round(took / steps * 1e3, 3)

    def close(self) -> None:
        self._engine.close()
        self._engine.layouts.close()

    def _add(self, requests: int, prompt_tokens: int, max_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        for i in range(requests):
            request = Request(id=str(i), prompt="-", raw=True, sampling=sampling)
            self._engine.add(SequenceState(request, self._tokens[:prompt_tokens], time.monotonic()))


def measure(
    steps: Steps, tool: Path, model: Path, pairs: int, all_requests: Sequence[int], all_cells: Sequence[int]
) -> Iterator[Point]:
    """Each point in so many pairs of runs, in which the two sides take turns at being first.

    Raises ToolFailed.
    """
    for cells, requests in product(all_cells, all_requests):
        if cells >= MANY_CELLS and requests not in FEW_REQUESTS:
            continue
        point = Point(requests, cells, [], [])
        for pair in range(pairs):
            for ours in (True, False) if pair % 2 else (False, True):
                if ours:
                    point.ours_ms.append(steps.ms(requests, cells))
                else:
                    took = llama_batched_bench.step_ms(tool, model, requests, cells, STEPS, steps.lane_cells)
                    point.llama_cpp_ms.append(took)
        yield point
