"""Ways of decoding side by side, over a tiny model with random heads of each kind."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from docs.measured.figures import read
from engine.speculative.controller import Speculation
from tests.benchmarks.drafting.heads import write_random_heads
from tests.benchmarks.large.comparison import (
    BOTH,
    COLUMNS,
    MEDUSA,
    PLAIN,
    WAYS,
    Case,
    _engines,
    add_options,
    measure,
    run,
)
from tests.benchmarks.large.shapes import PRESETS
from tests.engine.helpers.tiny import WIDTH, write_tiny_gguf
from tests.support.measuring.report import Report
from training.heads.recipe import Kind


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = Path(write_tiny_gguf(tmp_path / "tiny.gguf"))
    heads = tmp_path / "heads.safetensors"
    write_random_heads(heads, WIDTH, 200, 3, getattr(request, "param", Kind.HYDRA))
    return Case(model, heads, ["abcabcabcabc", "the letters of a word"], max_tokens=12)


@pytest.mark.parametrize("case", Kind, indirect=True)
def test_each_way_has_its_row_and_heads_draft_where_they_must(case: Case) -> None:
    times: list[str] = []
    rows = {row[1]: row for row in measure(case, [2], times.append)}
    assert times[0].startswith("T(1) ")
    assert list(rows) == [PLAIN, *WAYS]
    assert all(len(row) == len(COLUMNS) and row[0] == "2" for row in rows.values())
    assert all(row[6] == "1" for row in rows.values()), "two prompts, each once"
    assert rows[PLAIN][-1] == "-"
    assert re.search(r"\bheads \d+ of [1-9]\d*", rows[MEDUSA][-1])
    assert "lookup" not in rows[MEDUSA][-1]


def test_each_way_asks_its_own_sources(case: Case) -> None:
    with _engines(case, 1) as (engines, modes):
        assert list(modes) == [PLAIN, *WAYS]
        assert len(engines) == len(modes)
        sources: dict[str, tuple[str, ...]] = {}
        for name in WAYS:
            source = modes[name].source
            assert isinstance(source, Speculation)
            sources[name] = source.names
        assert sources == {
            MEDUSA: ("grammar", "lookup", "medusa"),
            "auto, heads": ("medusa",),
            "auto, lookup": ("grammar", "lookup"),
            BOTH: ("grammar", "lookup", "medusa"),
        }


def test_a_case_has_room_for_its_longest_prompt_and_answer(case: Case) -> None:
    longer = replace(case, prompts=["a", "b" * 100])
    assert longer.cells >= 100 / 2 + case.max_tokens
    assert replace(longer, max_tokens=40).cells == longer.cells + 40 - case.max_tokens


def options_of(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(words)


def test_each_shape_has_a_table_of_its_own(case: Case, tmp_path: Path) -> None:
    prompts, figures = tmp_path / "prompts.jsonl", tmp_path / "figures.json"
    lines = ({"question_id": n, "category": "a", "turns": [text]} for n, text in enumerate(case.prompts))
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = options_of(
        *("--shapes", "as-is", "160x10x192x5", "--large-formats", "f16", "q8_0", "--requests", "1"),
        *("--heads", str(case.heads)),
    )
    vars(options).update(model=case.model, prompts=prompts, limit=2, max_tokens=4, server=None)
    run(options, Report("the command", figures, "tiny.gguf"))
    tables = {table.name: table for table in read(figures)}
    assert {name: {row[0] for row in table.rows} for name, table in tables.items()} == {
        "widened-as-is": {"tiny"},
        "widened-160x10x192x5": {"f16", "q8_0"},
    }
    assert all(row[7] == "2" for table in tables.values() for row in table.rows), "pairs"
    assert [len(table.notes) for table in tables.values()] == [2, 1], "T(n) of each file"


def test_a_preset_has_one_name_however_it_is_given() -> None:
    assert options_of("--shapes", "1b", str(PRESETS["3B"]), "as-is").shapes == ["1B", "3B", "as-is"]
