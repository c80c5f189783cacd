"""Runs of several batches, in this process, so that parts can be small."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from cli.run import batch_runner, run
from cli.run.session import RunOptions
from cli.run.shards import PartFiles
from cli.run.summary import Outcome
from tests.cli.helpers.running import read_jsonl, write_jsonl

pytestmark = pytest.mark.stack


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PartFiles", functools.partial(PartFiles, most_lines=4))


def prompts(count: int, **of_line: Any) -> list[dict[str, Any]]:
    return [{"custom_id": f"id-{n}", "prompt": f"answer {n} tokens=2", **of_line} for n in range(count)]


def go(folder: Path, gateway: str, **options: Any) -> tuple[Outcome, str]:
    """Run p.jsonl; what came of it, and what was said."""
    console = Console(file=io.StringIO(), width=200)
    outcome = run.run(
        RunOptions(str(folder / "p.jsonl"), folder / "r.jsonl", url=gateway, **options), console
    )
    assert isinstance(console.file, io.StringIO)
    return outcome, console.file.getvalue()


def test_many_parts_make_one_file_of_results(tmp_path: Path, gateway: str) -> None:
    lines: list[dict[str, Any]] = prompts(30)
    for bad in (0, 7, 8, 29):
        lines[bad]["top_p"] = 7
    lines[13]["prompt"] += " fail=boom"
    write_jsonl(tmp_path / "p.jsonl", lines)
    outcome, said = go(tmp_path, gateway)
    rows = read_jsonl(tmp_path / "r.jsonl")
    assert [row["custom_id"] for row in rows] == [f"id-{n}" for n in range(30)]
    assert [row["error"]["line"] for row in rows if row["error"]] == [1, 8, 9, 14, 30]
    assert [row["error"]["code"] for row in rows if row["error"]] == [
        "invalid_value",
        "invalid_value",
        "invalid_value",
        "boom",
        "invalid_value",
    ]
    assert (outcome.whole.requests, outcome.whole.failed, outcome.whole.generated_tokens) == (30, 5, 50)
    assert (outcome.session.requests, outcome.session.tokens) == (30, 50)
    see = f"medusaq validate {tmp_path}/p.jsonl"
    first, *progress = said.splitlines()
    assert first == f"4 of 30 requests are invalid; `{see}` lists all problems; sending the others"
    assert all("tokens/s" in line for line in progress), "of a run that took a while"
    parts = [b for b in listed(gateway) if b["metadata"].get("part", "").endswith(" of 7")]
    assert [batch["metadata"]["part"] for batch in reversed(parts)] == [f"{n} of 7" for n in range(1, 8)]
    assert [batch["request_counts"]["total"] for batch in reversed(parts)] == [4] * 6 + [2]


def test_one_lost_part_is_run_again_alone(
    tmp_path: Path, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers vanish after its end, before they are fetched."""
    write = batch_runner.write_results
    lost: list[str] = []

    async def lose_first(*arguments: Any) -> Any:
        if not lost:
            lost.append(arguments[3][1]["output_file_id"])
            httpx.delete(f"{gateway}/v1/files/{lost[0]}").raise_for_status()
        return await write(*arguments)

    monkeypatch.setattr(batch_runner, "write_results", lose_first)
    write_jsonl(tmp_path / "p.jsonl", prompts(12))
    before = len(listed(gateway))
    _, said = go(tmp_path, gateway)
    assert said == "the gateway does not know part 2 of 3: sending it again\n"
    assert [row["custom_id"] for row in read_jsonl(tmp_path / "r.jsonl")] == [f"id-{n}" for n in range(12)]
    assert len(listed(gateway)) == before + 4


def test_a_gateway_that_keeps_losing_a_part_is_given_up(
    tmp_path: Path, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = batch_runner.write_results

    async def lose_all(*arguments: Any) -> Any:
        for batch in arguments[3]:
            httpx.delete(f"{gateway}/v1/files/{batch['output_file_id']}").raise_for_status()
        return await write(*arguments)

    monkeypatch.setattr(batch_runner, "write_results", lose_all)
    write_jsonl(tmp_path / "p.jsonl", prompts(2))
    with pytest.raises(batch_runner.CliError, match="the gateway has lost part 1 4 times"):
        go(tmp_path, gateway)
    monkeypatch.undo()
    assert go(tmp_path, gateway)[0].whole.failed == 0


def listed(gateway: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = httpx.get(f"{gateway}/v1/batches", params={"limit": "100"}).json()["data"]
    return data
