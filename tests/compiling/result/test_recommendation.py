"""Which format is recommended, at the bounds of the rule."""

from __future__ import annotations

import pytest

from compiling.result.recommendation import Candidate, Load, recommend


def candidate(type: str, kl: float, per_s: float, bytes: int = 100) -> Candidate:
    return Candidate(type, kl, per_s, per_s / 50, bytes)


SOURCE = candidate("source (q4_1)", 0.003, 50.0)
EXACT = candidate("bf16", 0.0002, 90.0, bytes=270)
FAST = candidate("q8_0", 0.02, 95.0, bytes=140)
WRONG = candidate("q4_0", 0.3, 120.0, bytes=90)
ALL = (SOURCE, EXACT, FAST, WRONG)


@pytest.mark.parametrize(
    ("max_kl", "expected"),
    [
        (0.02, "q8_0"),  # the bound itself is within it
        (0.0199, "bf16"),
        (0.0002, "bf16"),
        (0.0001999, "bf16"),  # none fits: the closest
        (0.0, "bf16"),
        (0.3, "q4_0"),
    ],
)
def test_the_fastest_within_the_bound(max_kl: float, expected: str) -> None:
    found = recommend(ALL, Load.BULK, max_kl)
    assert found.type == expected
    assert found.fits == (max_kl >= 0.0002)


def test_of_equally_fast_ones_the_smaller() -> None:
    twin = candidate("q6_k", 0.001, 95.0, bytes=110)
    assert recommend((SOURCE, FAST, twin), Load.BULK, 0.02).type == "q6_k"
    assert recommend((SOURCE, twin, FAST), Load.BULK, 0.02).type == "q6_k"


def test_of_equally_close_ones_the_faster() -> None:
    twin = candidate("q4_1", 0.3, 130.0)
    assert recommend((WRONG, twin), Load.BULK, 0.02).type == "q4_1"
    assert recommend((twin, WRONG), Load.BULK, 0.02).type == "q4_1"


def test_the_source_may_be_the_best() -> None:
    assert recommend((SOURCE,), Load.BULK, 0.02) == recommend((SOURCE, WRONG), Load.BULK, 0.02)
    assert not recommend((SOURCE,), Load.BULK, 0.0).fits


def test_the_reason_has_the_numbers() -> None:
    assert recommend(ALL, Load.BULK, 0.02).reason == (
        "the fastest in bulk (95.0 tokens/s, 1.90 times the source) of the 3 whose divergence is at most "
        "0.02 nats a token; its own is 0.02"
    )
    assert recommend(ALL, Load.ONE, 0.0).reason == (
        "none has a divergence of at most 0 nats a token; this one comes closest with 0.0002 "
        "(90.0 tokens/s for a lone stream)"
    )
