"""What counts as lost, doubled or changed, and from which release an upgrade begins: without Docker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.containers.load import LINES, Verdict, judge, write_lines
from tests.containers.previous import revision
from tests.support.workers import ROOT

KNOWN = {f"line-{n}": f"answer {n}" for n in range(LINES)}


def test_the_answers_of_a_quiet_system_are_right() -> None:
    assert judge([*KNOWN.items()], KNOWN) == Verdict(submitted=LINES)
    assert judge([*KNOWN.items()], KNOWN).right


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([*KNOWN.items()][1:], Verdict(submitted=LINES, lost=1)),
        ([*KNOWN.items(), ("line-7", "answer 7")], Verdict(submitted=LINES, doubled=1)),
        ([*(KNOWN | {"line-7": "another"}).items()], Verdict(submitted=LINES, changed=1)),
        ([], Verdict(submitted=LINES, lost=LINES)),
        (
            [*[*KNOWN.items()][1:], ("line-none", "x")],
            Verdict(submitted=LINES, lost=1, doubled=1, changed=1),
        ),
    ],
)
def test_a_missing_a_second_and_another_answer_are_counted(
    found: list[tuple[str, str]], verdict: Verdict
) -> None:
    assert judge(found, KNOWN) == verdict
    assert not verdict.right


def test_a_line_that_the_quiet_system_lost_is_lost() -> None:
    found = [*KNOWN.items()][1:]
    assert judge(found, dict(found)) == Verdict(submitted=LINES, lost=1)


def test_verdicts_add_up() -> None:
    whole = Verdict(1, 2, 3, 4)
    whole.add(Verdict(10, 20, 30, 40))
    assert whole == Verdict(11, 22, 33, 44)


def test_no_two_lines_ask_the_same(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in write_lines(tmp_path / "lines.jsonl").read_text().splitlines()]
    assert len({line["custom_id"] for line in lines}) == LINES
    assert len({json.dumps(line["body"]) for line in lines}) == LINES


def _git(*arguments: str) -> str:
    """What it prints; skips where the history is not here, as in an archive or a shallow clone."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"git: {done.stderr.strip()}")
    return done.stdout


def test_the_earlier_release_has_container_files() -> None:
    _git("rev-parse", "HEAD^")
    listed = _git("ls-tree", "--name-only", revision())
    assert {"Dockerfile", "docker-compose.yml", "requirements.lock"} <= set(listed.split())
