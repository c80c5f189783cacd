"""The figures, the choice of prompts, and the parts that one command measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.measured.figures import read
from engine.llama.model import default_model_path
from tests.benchmarks import all as every
from tests.benchmarks.all import PARTS, Part
from tests.benchmarks.common import Throughput, load_spec_bench, thin_end


@pytest.fixture
def spec_bench(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    rows = [{"question_id": n, "category": "qa", "turns": [f"é {n}", "again"]} for n in range(10)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [(None, list(range(10))), (10, list(range(10))), (99, list(range(10))), (3, [0, 3, 6])],
)
def test_prompts_are_first_turns_spread_over_the_file(
    spec_bench: Path, limit: int | None, chosen: list[int]
) -> None:
    assert load_spec_bench(spec_bench, limit) == [f"é {n}" for n in chosen]


def test_the_rate_is_generated_tokens_over_wall_time() -> None:
    figure = Throughput(requests=4, prompt_tokens=1000, generated_tokens=256, wall_s=8.0)
    assert figure.tokens_per_s == 32.0
    assert figure.line("name").split()[:3] == ["name", "32.0", "tokens/s"]


def test_the_default_model_is_a_gguf() -> None:
    with Path(default_model_path()).open("rb") as model:
        assert model.read(4) == b"GGUF"


@pytest.mark.parametrize(
    ("ended", "slots", "seconds"),
    [([9.0, 4.0, 5.0, 7.0], 2, 2.0), ([4.0, 9.0], 2, 5.0), ([9.0], 2, 9.0), ([4.0, 9.0], 1, 0.0)],
)
def test_the_end_is_thin_once_a_slot_stays_empty(ended: list[float], slots: int, seconds: float) -> None:
    assert thin_end(ended, slots) == seconds


def test_a_part_gets_the_options_that_it_has(tmp_path: Path) -> None:
    given = {"limit": ["2"], "lines": ["300"], "server": ["/bin/server"], "answers": ["part-0", "part-1"]}
    given["shapes"] = ["1B", "3B"]
    model, record = tmp_path / "m.gguf", tmp_path / "figures.json"

    def words(name: str) -> list[str]:
        return every.command(PARTS[name], given, model, record)[3:]

    recorded = ["--record", str(record)]
    assert words("widened") == [
        *("--only", "widened", "--limit", "2", "--server", "/bin/server", "--shapes", "1B", "3B"),
        *recorded,
    ]
    assert words("sharing") == ["--only", "sharing", *recorded]
    assert words("large") == ["--only", "large", "--lines", "300", *recorded]
    assert words("trained") == ["--answers", "part-0", "part-1", *recorded]
    assert words("lookup-simulation") == ["--limit", "2", "--model", str(model), *recorded]
    assert every.command(PARTS["guesses"], given, model, None)[3:] == []


def test_every_table_comes_from_a_part() -> None:
    modules = {table.command.partition("-m ")[2].split()[0] for table in read()}
    assert modules <= {part.module for part in PARTS.values()}


def test_a_part_that_fails_or_lacks_a_program_keeps_no_other_from_being_measured(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = {"bad": Part("no_such_module"), "lacks": Part("this", needs="server"), "good": Part("this")}
    monkeypatch.setattr(every, "PARTS", parts)
    assert every.run([*parts], {}, None) == 1
    said = capfd.readouterr().out
    assert "The Zen of Python" in said
    assert said.splitlines()[-3:] == [
        "measured: 1 of 3 parts",
        "left out: lacks (needs --server)",
        "failed: bad",
    ]
