"""What the simulation counts as known, and the best that can be made of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.drafting.lookup_simulation import DRAFTED_S, Answer, _right_copies, ceiling
from tests.support.measuring.profiles import FixedProfile


def answer(prompt: list[int], output: list[int]) -> Answer:
    return Answer(np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32))


def test_copies_are_counted_up_to_the_first_that_is_wrong() -> None:
    # After 1 2 the prompt went on with 3 4 5; the output goes on with 3 4 9.
    assert _right_copies(answer([1, 2, 3, 4, 5, 7, 1, 2], [3, 4, 9])) == [2, 1, 0]


def test_the_ceiling_takes_what_is_right_in_as_few_calls_as_pay() -> None:
    reply = answer(
        [1, 2, 3, 4, 5, 7], [1, 2, 3, 4, 5]
    )  # the first by prefill; after it 2 3 4 5 can be copied
    assert _right_copies(reply)[1] == 4
    free = FixedProfile(dict.fromkeys(range(1, 25), 1.0))
    assert ceiling(free, [reply]) == pytest.approx(4 / (1 + DRAFTED_S)), "one call with three drafts"
    steep = FixedProfile({rows: float(rows) for rows in range(1, 25)})
    assert ceiling(steep, [reply]) == pytest.approx(1.0, abs=1e-3), "a row that costs a call gains nothing"
