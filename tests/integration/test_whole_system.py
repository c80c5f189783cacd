"""The main job end to end, on the real model: `medusaq up`, `medusaq run`, a murdered worker, and Flower."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.helpers.running import Begun, Cli, read_jsonl, write_jsonl
from tests.support.workers import ROOT, wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]
PROMPTS = (9, 10, 11, 12, 13, 14)  # two long ones that begin alike, and short ones
DRAFTED = 48  # tokens of an answer, at most
LONG = 400  # characters of the instruction that the first two share: more would prove no more


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    runner = Cli(tmp_path)
    # Bit-identical results, so that a run with a kill in it must equal one without.
    runner.env |= {
        "MEDUSAQ_ENGINE_FACTORY": "engine:load",
        "MEDUSAQ_BATCH_INVARIANT": "1",
        "MEDUSAQ_SLOTS": "4",
        "FLOWER_UNAUTHENTICATED_API": "1",
    }
    yield runner
    runner.close()


def prompts() -> list[dict[str, Any]]:
    examples = (ROOT / "examples" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    chosen: list[dict[str, Any]] = [json.loads(examples[index]) for index in PROMPTS]
    first, second = (line["body"]["messages"][0] for line in chosen[:2])
    assert first["content"] == second["content"]
    assert len(first["content"]) > LONG
    first["content"] = second["content"] = first["content"][:LONG]
    return chosen


def answers(results: Path) -> list[tuple[str, int, str]]:
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert all(row["error"] is None for row in rows), rows
    return [
        (
            row["custom_id"],
            row["response"]["status_code"],
            row["response"]["body"]["choices"][0]["message"]["content"],
        )
        for row in rows
    ]


def test_a_killed_worker_changes_nothing_and_flower_shows_it_all(cli: Cli) -> None:
    lines = prompts()
    write_jsonl(cli.folder / "prompts.jsonl", lines)
    up = cli.start("up", "--port", "0", "--flower-port", "0")
    url = up.wait_for("  gateway  ", 120).split()[-1]
    flower = up.wait_for("  Flower   ").split()[-1]

    served = httpx.get(f"{url}/v1/models").json()["data"][0]
    (worker,) = served["workers_detail"]
    assert (worker["slots"], worker["batch_invariant"]) == (4, True), "as the settings say"
    assert worker["draft_sources"] == ["grammar", "lookup", "medusa"], "the package has heads for it"

    run = cli.start("run", "prompts.jsonl", "-o", "killed.jsonl", "--url", url, "--max-tokens", "12")
    begun = Begun(cli.folder / "killed.jsonl", url)
    wait_until(lambda: begun.done() >= 3, 300, report=run.text)
    assert run.process.poll() is None
    cli.kill(cli.service("worker"))
    assert run.process.wait(300) == 0, run.text()
    assert listed(url) == [], "lines of a batch are no jobs"

    calm = cli.start("run", "prompts.jsonl", "-o", "calm.jsonl", "--url", url, "--max-tokens", "12")
    assert calm.process.wait(300) == 0, calm.text()
    assert answers(cli.folder / "killed.jsonl") == answers(cli.folder / "calm.jsonl")
    expected = [line.get("custom_id", f"line-{i}") for i, line in enumerate(lines, 1)]
    assert [row[0] for row in answers(cli.folder / "calm.jsonl")] == expected

    check_drafts(url)
    compared = cli("compare", "List the months of the year.", "--url", url, "--max-tokens", "8")
    assert compared.returncode == 0, compared.stderr
    assert "medusa" in compared.stdout

    # Of the killed worker a task may be shown as started for ever: the kill came before its last event.
    calm_jobs = {row["response"]["request_id"] for row in read_jsonl(cli.folder / "calm.jsonl")}
    assert len(calm_jobs) == len(lines)
    check_flower(flower, f"batch_{calm_jobs.pop()[4:36]}", len(lines))
    up.send(signal.SIGTERM)
    assert up.wait() == 0
    cli.gone()


def listed(url: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = httpx.get(f"{url}/v1/jobs", params={"limit": "100"}).json()["data"]
    return data


def check_drafts(url: str) -> None:
    """The shipped heads draft on a request that asks for them, and change nothing in it."""
    answers = set()
    for more in (
        {"decoding": "normal"},
        {"decoding": "medusa"},
        {"decoding": "medusa", "acceptance": "typical"},
    ):
        sent = {"prompt": "Count from one to twenty in words.", "max_tokens": DRAFTED, **more}
        job = httpx.post(f"{url}/v1/jobs", json=sent, headers={"Prefer": "wait=60"}, timeout=90).json()
        assert job["status"] == "succeeded", job
        speculation = job["result"]["speculation"]
        if more["decoding"] == "normal":
            assert speculation["sources"] == {}
        else:
            assert speculation["sources"]["medusa"]["accepted"] > 0
            assert speculation["steps"] < job["result"]["usage"]["completion_tokens"]
        answers.add((job["result"]["text"], job["result"]["usage"]["completion_tokens"]))
    asked = {"prompt": "Count from one to twenty in words.", "max_length": DRAFTED}
    one = httpx.post(f"{url}/generate/medusa", json=asked, timeout=90).json()
    both = httpx.post(f"{url}/compare", json=asked, timeout=90).json()
    for answer in (one, both["normal"], both["medusa"]):
        answers.add((answer["text"], answer["tokens_generated"]))
        assert answer["tokens_per_second"] > 0
    assert both["normal"]["acceptance_rate"] is None
    assert min(one["acceptance_rate"], both["medusa"]["acceptance_rate"]) > 0
    assert both["speedup"] > 0
    # Where the model itself ends it depends on the processor's kernels.
    [(_, tokens)] = answers  # typical acceptance is greedy too where the temperature is 0
    assert DRAFTED / 2 < tokens <= DRAFTED


def check_flower(flower: str, batch_id: str, lines: int) -> None:
    """Each window of a batch is a task with worker, state, runtime, and a line of its lines and tokens."""

    def ended() -> list[dict[str, Any]]:
        tasks = httpx.get(f"{flower}/api/tasks", params={"limit": "1000"}).json()
        windows = [task for task in tasks.values() if task["args"].startswith(f"'{batch_id} line")]
        return windows if windows and all(task["state"] == "SUCCESS" for task in windows) else []

    wait_until(lambda: bool(ended()))  # it hears of events some time after they were sent
    windows = ended()
    for task in windows:
        assert task["name"] == "medusaq.window"
        assert task["worker"].startswith("worker-")
        assert task["runtime"] > 0
        assert "tok/s" in task["result"]
    found = [re.search(r"([\d,]+) lines?, ", task["result"]) for task in windows]
    assert sum(int(match[1].replace(",", "")) for match in found if match) == lines
