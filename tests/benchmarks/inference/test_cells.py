"""The timed steps are those that are meant: one row of one token for each request, and no prompt computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.common import ToolFailed
from tests.benchmarks.inference.cells import MANY_CELLS, STEPS, UNTIMED, Steps, measure
from tests.engine.helpers.drive import check_cache, on_decode
from tests.engine.helpers.tiny import CONTEXT, write_tiny_gguf

# Answers as llama-batched-bench does: its last arguments are -npp N -ntg N -npl N.
ANSWERS = """#!/bin/sh
while [ "$1" != -npp ]; do shift; done
echo "{\\"pp\\": $2, \\"tg\\": $4, \\"pl\\": $6, \\"t_tg\\": 0.8, \\"t_pp\\": 1}"
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf"))


def test_prompts_are_laid_into_lanes_and_not_computed_again(model: Path) -> None:
    steps = Steps(model, slots=3, longest=200)
    calls: list[int] = []
    on_decode(steps._engine, calls.append)
    assert steps.ms(3, 200, steps=4) > 0
    assert steps.ms(2, 100, steps=4) > 0
    assert len(calls) == 2 * (4 + UNTIMED)
    check_cache(steps._engine)


def test_requests_that_do_not_run_together_are_no_result(model: Path) -> None:
    with pytest.raises(ToolFailed, match="not all of 3 requests decoded one token in each of 4 steps"):
        Steps(model, slots=2, longest=100).ms(3, 100, steps=4)


def test_lanes_that_are_too_short_are_said(model: Path) -> None:
    with pytest.raises(ToolFailed, match=f"and {2 * CONTEXT + UNTIMED} are needed"):
        Steps(model, slots=2, longest=2 * CONTEXT)


def test_a_point_has_both_sides_of_each_pair(model: Path, tmp_path: Path) -> None:
    tool = tmp_path / "llama-batched-bench"
    tool.write_text(ANSWERS, encoding="utf-8")
    tool.chmod(0o755)
    steps = Steps(model, slots=2, longest=100)
    points = list(measure(steps, tool, model, 2, (1, 2), (50, 100)))
    assert [(point.requests, point.cells) for point in points] == [(1, 50), (2, 50), (1, 100), (2, 100)]
    assert not list(measure(steps, tool, model, 1, (2,), (MANY_CELLS,))), "of many cells fewer requests"
    for point in points:
        assert point.llama_cpp_ms == [pytest.approx(800 / STEPS)] * 2
        assert len(point.ours_ms) == len(point.ratios) == 2
