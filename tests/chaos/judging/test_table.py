"""When the table is written, and what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.chaos.__main__ import ORDER, Report, too_slow
from tests.chaos.cases.case import CASES
from tests.chaos.judging.table import BEGIN, END, footer, row, table, write
from tests.chaos.judging.verdict import Tally
from tests.chaos.run import Outcome
from tests.support.measuring.machine import commit
from tests.support.workers import ROOT


def test_the_table_replaces_the_earlier_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    cells = row(CASES["sigterm"], Outcome(3, [1.0, 2.0, 4.5], Tally(1234, 56), []))
    made = table([cells])
    for _ in range(2):
        write(page, made)
        assert page.read_text() == f"before\n{BEGIN}\n{made}\n{END}\nafter\n"
    assert cells[1:] == ("3", "1,234", "56", "0", "0", "2.0 s", "4.5 s")
    (tmp_path / "other.md").write_text("no place")
    with pytest.raises(ValueError, match="unpack"):
        write(tmp_path / "other.md", made)


def test_only_a_whole_table_without_a_failure_is_written() -> None:
    whole = Report(skipped={"clock-redis": "no C compiler"})
    assert whole.unfit(ORDER) == ""
    assert "without" in whole.unfit(["kill-worker"])
    assert "failed: soak" in Report(failed=["soak"]).unfit(ORDER)


def test_what_made_it() -> None:
    assert (
        footer(21.4, "2 cores of a CPU", "--strikes 1", "", {})
        == "21 minutes on 2 cores of a CPU, `--strikes 1`."
    )
    told = footer(21.4, "2 cores of a CPU", "--strikes 1", "abc1234", {"clock-redis": "no C compiler"})
    assert told.endswith("commit abc1234. Left out: `clock-redis` (no C compiler).")


def test_the_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) == ""
    who = ("-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false")
    for command in (("init", "-q"), (*who, "commit", "-q", "--allow-empty", "-m", "x")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert commit(tmp_path)
    assert head.startswith(commit(tmp_path))


@pytest.mark.parametrize(
    ("name", "recovered_s", "trouble"),
    [
        ("kill-worker", [12.0, 19.9], ""),
        ("kill-worker", [12.0, 20.1], "after 20.1 s, not within 20 s"),
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
