"""The example files hold what examples/README.md says, and `medusaq run` takes every line of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cli.prompts.prompt_reader import PromptLine, ReadOptions
from cli.prompts.source import Source

EXAMPLES = Path(__file__).parents[3] / "examples"
LONG_WORDS = 200  # an instruction of this length is worth sharing


def _read(name: str, column: str | None = None) -> tuple[list[PromptLine], Counter[str]]:
    kinds: Counter[str] = Counter()
    path = EXAMPLES / name
    return list(Source(path, name, ReadOptions(column=column)).lines(kinds)), kinds


@pytest.mark.parametrize(
    ("name", "column", "count"),
    [("prompts.jsonl", None, 72), ("prompts.txt", None, 10), ("questions.csv", "question", 8)],
)
def test_every_line_is_a_job(name: str, column: str | None, count: int) -> None:
    lines, _ = _read(name, column)
    assert [line.problems for line in lines if line.problems] == []
    assert len(lines) == count


def test_the_prompts_mix_the_forms_and_two_families_share_their_instruction() -> None:
    lines, kinds = _read("prompts.jsonl")
    assert kinds["batch"] > kinds["jsonl"] > 0
    instructions = Counter(
        message["content"]
        for line in lines
        for message in line.job.get("messages", [])
        if message["role"] == "system" and len(message["content"].split()) > LONG_WORDS
    )
    assert sorted(instructions.values()) == [16, 22]
    assert all(48 <= line.job["max_tokens"] <= 128 for line in lines)


def test_a_quoted_line_break_stays_in_the_question() -> None:
    lines, _ = _read("questions.csv", "question")
    assert sum("\n" in line.job["prompt"] for line in lines) == 2
    assert sum("," in line.job["prompt"] for line in lines) >= 5
