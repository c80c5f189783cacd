"""When the table is recorded, and what it says."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import ORDER, Report, too_slow
from tests.chaos.cases.case import CASES
from tests.chaos.judging.table import HEAD, note, row
from tests.chaos.judging.verdict import Tally
from tests.chaos.run import Outcome
from tests.support.workers import ROOT


def test_a_row_has_counts_and_recoveries() -> None:
    cells = row(CASES["sigterm"], Outcome(3, [1.0, 2.0, 4.5], Tally(1234, 56), []))
    assert cells[1:] == ("3", "1,234", "56", "0", "0", "2.0 s", "4.5 s")
    assert len(cells) == len(HEAD)


def test_only_a_whole_table_without_a_failure_is_written() -> None:
    whole = Report(skipped={"clock-redis": "no C compiler"})
    assert whole.unfit(ORDER) == ""
    assert "without" in whole.unfit(["kill-worker"])
    assert "failed: soak" in Report(failed=["soak"]).unfit(ORDER)


def test_what_was_left_out_is_said() -> None:
    assert note(21.4, {}) == "21 minutes."
    assert note(21.4, {"clock-redis": "no C compiler"}) == (
        "21 minutes. Left out: `clock-redis` (no C compiler)."
    )


@pytest.mark.parametrize(
    ("name", "recovered_s", "trouble"),
    [
        ("kill-worker", [8.0, 9.9], ""),
        ("kill-worker", [8.0, 10.1], "after 10.1 s, not within 10 s"),
        ("kill-worker-fast", [4.9], ""),
        ("kill-worker-fast", [5.1, 3.0], "after 5.1 s, not within 5 s"),
        ("redis-restart", [60.0], ""),
        ("kill-worker", [], ""),
    ],
)
def test_a_recovery_that_took_too_long_is_seen(name: str, recovered_s: list[float], trouble: str) -> None:
    found = too_slow(CASES[name], Outcome(1, recovered_s, Tally(), []))
    assert len(found) == bool(trouble)
    assert trouble in "".join(found)


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_described(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "explanation" / "chaos.md").read_text(encoding="utf-8")
