"""How long a run would take: from calls that were measured and runs that have ended."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from cli.prompts import run_time
from cli.prompts.prompt_reader import ReadOptions
from cli.prompts.run_time import KNOWN, OVERHEAD_S, Estimate, RunTimes, Work, call_seconds, kind_of
from engine import EngineConfig
from engine.base.config import AS_SHIPPED, BF16
from engine.host.measurement_cache import write_measurement
from engine.llama.model import default_model_path
from engine.weights.format_selection import Timing, speed_key
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.prompts.test_dry_run import summary

CALLS = Timing(alone=0.01, together=0.04, prompt_token=0.001, slots=16)
WORK = Work(requests=160, prompt_tokens=1000, answer_tokens=16_000)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EngineConfig:
    """Of the default model, on a machine where its calls were measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = EngineConfig(model=default_model_path(), threads=1)
    times = {AS_SHIPPED: asdict(CALLS), BF16: asdict(Timing(1, 1, 1, 16))}
    write_measurement("formats", speed_key(config), times)
    return config


def middle(found: Estimate | None) -> float:
    assert found is not None
    return math.sqrt((found.least - OVERHEAD_S) * (found.most - OVERHEAD_S))


def test_calls_are_shared_by_as_many_as_are_left() -> None:
    assert call_seconds(Work(16, 0, 1600), CALLS) == pytest.approx(100 * 0.04)
    assert call_seconds(Work(17, 0, 1700), CALLS) == pytest.approx(100 * (0.04 + 0.01)), "one runs alone"
    assert call_seconds(Work(1, 500, 100), CALLS) == pytest.approx(0.5 + 100 * 0.01)
    assert call_seconds(Work(0, 0, 0), CALLS) == 0


def test_a_run_says_how_long_the_next_takes(config: EngineConfig) -> None:
    times, seconds = RunTimes(config), 20.0
    assert times.estimate("k", 160, 2000, 64_000) != times.estimate("k", 160, 2000, 16_000)
    times.note("k", WORK, 1000, OVERHEAD_S + seconds)
    found = RunTimes(config).estimate("k", 160, 2000, 64_000)
    assert found is not None
    assert found.answers == 160
    assert middle(found) == pytest.approx(seconds), "half of the prompts are cached, as they were"
    assert found.most - OVERHEAD_S == pytest.approx(KNOWN * seconds)
    twice = RunTimes(config).estimate("k", 320, 4000, 128_000)
    assert middle(twice) == pytest.approx(2 * seconds)
    assert middle(RunTimes(config).estimate("k", 160, 2000, 8000)) < seconds, "no more than may come"


def test_of_another_kind_of_request_the_speed_alone_is_known(config: EngineConfig) -> None:
    RunTimes(config).note("k", WORK, 0, OVERHEAD_S + 3 * call_seconds(WORK, CALLS))
    found = RunTimes(config).estimate("other", 160, 1000, 16_000)
    assert found is not None
    assert found.answers == 0
    assert found.least < OVERHEAD_S + 3 * call_seconds(WORK, CALLS) < found.most
    assert "--limit 10" in found.text()


def test_a_short_run_says_how_long_answers_are_and_nothing_of_speed(config: EngineConfig) -> None:
    RunTimes(config).note("k", WORK, 0, OVERHEAD_S + 2 * call_seconds(WORK, CALLS))
    RunTimes(config).note("short", Work(10, 100, 50), 0, 60.0)
    found = RunTimes(config).estimate("short", 160, 1600, 16_000)
    assert middle(found) == pytest.approx(2 * call_seconds(Work(160, 1600, 800), CALLS))


def test_what_is_kept_is_bounded_and_a_damaged_note_is_as_none(config: EngineConfig, tmp_path: Path) -> None:
    for number in range(run_time.MOST_KINDS + 3):
        RunTimes(config).note(f"k{number}", WORK, 0, 30.0)
    [kept] = (tmp_path / "cache").rglob("run_times-*.json")
    assert len(json.loads(kept.read_text())["kinds"]) == run_time.MOST_KINDS
    before = RunTimes(config).estimate("k0", 160, 1000, 16_000)
    assert before is not None
    assert before.answers == 0, "the oldest is forgotten"
    for damaged in (
        "{",
        "[]",
        '{"factor": "x", "kinds": 3}',
        '{"factor": 2.0, "kinds": {"k9": {"answer": []}}}',
    ):
        kept.write_text(damaged)
        found = RunTimes(config).estimate("k9", 160, 1000, 16_000)
        assert found is not None
        assert found.answers == 0


def test_the_kind_is_what_is_asked_for_and_not_of_which_rows() -> None:
    one = ReadOptions(template="Say {{ text }}", defaults={"max_tokens": 5})
    assert kind_of(one) == kind_of(
        ReadOptions(template="Say {{ text }}", defaults={"max_tokens": 5}, limit=10)
    )
    assert kind_of(one) != kind_of(ReadOptions(template="Say {{ text }}", defaults={"max_tokens": 6}))
    assert kind_of(one) != kind_of(ReadOptions(template="Say it {{ text }}", defaults={"max_tokens": 5}))


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [(0.61, 1.2, "0.6 to 1.2 s"), (40.2, 70.4, "40 to 70 s"), (75, 130, "1 min 15 s to 2 min 10 s")],
)
def test_it_is_said_as_a_range(least: float, most: float, said: str) -> None:
    assert Estimate(least, most, 10).text() == (
        f"about {said}, beside starting, if answers are as long as the 10 of the last run with these options"
    )


@pytest.mark.stack
def test_a_real_run_is_noted_for_the_next_dry_run(in_process: InProcessCli, tmp_path: Path) -> None:
    """With the default model, and a speed of its calls that stands there already."""
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "MEDUSAQ_ENGINE_FACTORY": "engine:load"}
    (in_process.folder / "r.csv").write_text("text\nred\nblue\ngreen\n", encoding="utf-8")
    command = ("run", "r.csv", "-o", "o.csv", "--template", "Say {{ text }}", "--max-tokens", "8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache["XDG_CACHE_HOME"])
        times = {AS_SHIPPED: asdict(CALLS), BF16: asdict(Timing(1, 1, 1, 16))}
        write_measurement("formats", speed_key(EngineConfig(model=default_model_path(), threads=1)), times)
    ended = in_process(*command, MEDUSAQ_SPECULATION="0", **cache)
    assert ended.returncode == 0, ended.stderr
    ended = in_process(*command, "--dry-run", **cache)
    told = summary(ended.stdout)["time"]
    assert told.endswith("if answers are as long as the 3 of the last run with these options"), told
