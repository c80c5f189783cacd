"""A peer's process, by a script in its place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks.common import ToolFailed
from tests.benchmarks.peers import peer
from tests.benchmarks.peers.peer import Peer

ANSWERS = """
import json, os, sys
assert "OMP_WAIT_POLICY" not in os.environ, "ours would slow it"
print(json.dumps({"load_s": 2.5}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job["tokens"] > 100:
        sys.exit("too long an answer")
    generated = len(job["prompts"]) * job["tokens"]
    print(json.dumps({"generated": generated, "seconds": generated / job["at_once"]}), flush=True)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(peer, "HERE", tmp_path)
    (tmp_path / "script.py").write_text(ANSWERS)
    return "script.py"


def test_it_answers_jobs_one_after_the_other(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with Peer(Path(sys.executable), script) as found:
        assert found.load_s == 2.5
        for at_once in (1, 4):
            run = found.answer([[1, 2], [3]], at_once, 10)
            assert (run.requests, run.prompt_tokens, run.generated_tokens) == (2, 3, 20)
            assert run.tokens_per_s == at_once


def test_what_it_said_last_is_told(script: str) -> None:
    with Peer(Path(sys.executable), script) as found:
        for _ in range(2):
            with pytest.raises(ToolFailed, match="ended: too long an answer"):
                found.answer([[1]], 1, 101)


@pytest.mark.usefixtures("script")
def test_one_that_does_not_load() -> None:
    with pytest.raises(ToolFailed, match="no_such"):
        Peer(Path(sys.executable), "no_such.py")
