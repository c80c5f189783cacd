"""Which format is recommended, at the bounds of the rule."""

from __future__ import annotations

import pytest

from compiling.recommend import Candidate, Load, recommend

SOURCE = Candidate("source (q4_1)", kl=0.003, bulk_per_s=50.0, alone_per_s=100.0, bytes=100)
SLOW_EXACT = Candidate("bf16", kl=0.0002, bulk_per_s=90.0, alone_per_s=80.0, bytes=270)
FAST = Candidate("q8_0", kl=0.02, bulk_per_s=95.0, alone_per_s=99.0, bytes=140)
WRONG = Candidate("q4_0", kl=0.3, bulk_per_s=120.0, alone_per_s=140.0, bytes=90)
ALL = (SOURCE, SLOW_EXACT, FAST, WRONG)


@pytest.mark.parametrize(
    ("load", "max_kl", "expected"),
    [
        (Load.BULK, 0.02, "q8_0"),  # the bound itself is within it
        (Load.BULK, 0.0199, "bf16"),
        (Load.BULK, 0.0001999, "bf16"),  # none fits: the closest
        (Load.BULK, 0.3, "q4_0"),
        (Load.ONE, 0.02, "source (q4_1)"),  # nothing that fits is faster
        (Load.ONE, 0.3, "q4_0"),
        (Load.ONE, 0.0, "bf16"),
    ],
)
def test_the_fastest_within_the_bound(load: Load, max_kl: float, expected: str) -> None:
    found = recommend(ALL, load, max_kl)
    assert found.type == expected
    assert found.fits == any(one.kl <= max_kl for one in ALL)


def test_of_equally_fast_ones_the_smaller() -> None:
    twin = Candidate("q6_k", kl=0.001, bulk_per_s=95.0, alone_per_s=1.0, bytes=110)
    assert recommend((SOURCE, FAST, twin), Load.BULK, 0.02).type == "q6_k"
    assert recommend((SOURCE, twin, FAST), Load.BULK, 0.02).type == "q6_k"


def test_of_equally_close_ones_the_faster() -> None:
    twin = Candidate("q4_1", kl=0.3, bulk_per_s=130.0, alone_per_s=1.0, bytes=110)
    assert recommend((WRONG, twin), Load.BULK, 0.02).type == "q4_1"
    assert recommend((WRONG, twin), Load.ONE, 0.02).type == "q4_0"


def test_the_source_alone() -> None:
    assert recommend((SOURCE,), Load.BULK, 0.02).type == SOURCE.type
    assert not recommend((SOURCE,), Load.BULK, 0.0).fits


def test_the_reason_has_the_numbers() -> None:
    found = recommend(ALL, Load.BULK, 0.02)
    assert found.reason == (
        "the fastest in bulk (95.0 tokens/s, 1.90 times source (q4_1)) of the 3 whose divergence is at most "
        "0.02 nats a token; its own is 0.02"
    )
    none = recommend(ALL, Load.ONE, 0.0)
    assert none.reason == (
        "none has a divergence of at most 0 nats a token; this one comes closest with 0.0002 "
        "(80.0 tokens/s for a lone stream)"
    )
