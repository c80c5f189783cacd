"""That memory which grows is seen."""

from __future__ import annotations

import pytest

from tests.chaos.judging.memory import ENOUGH, growth

FLAT_MB = [100.0 + number % 3 for number in range(ENOUGH)]


@pytest.mark.parametrize(
    ("samples", "seen"),
    [
        (FLAT_MB, False),
        ([mb + number / 4 for number, mb in enumerate(FLAT_MB)], True),
        ([mb + 30 * (number > ENOUGH / 2) for number, mb in enumerate(FLAT_MB)], True),
        ([mb + 30 * (number == ENOUGH / 2) for number, mb in enumerate(FLAT_MB)], False),
        ([3.0 + number / 20 for number in range(ENOUGH)], True),
        ([3.0 + number / 60 for number in range(ENOUGH)], False),
        ([mb - number / 4 for number, mb in enumerate(FLAT_MB)], False),
    ],
)
def test_growth(samples: list[float], seen: bool) -> None:
    assert bool(growth(samples)) == seen
