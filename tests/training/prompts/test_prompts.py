"""Composed prompts: many, different, repeatable; and prompt files with all that can be wrong in them."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from training.base.errors import PromptsError
from training.prompts.prompts import COMPOSERS, Prompt, compose, read_prompts, write_prompts


def test_prompts_are_many_and_different() -> None:
    texts = [prompt.text for prompt in compose(10_000)]
    assert len(set(texts)) == 10_000


def test_the_same_seed_gives_the_same_prompts_and_another_one_others() -> None:
    assert list(compose(50, seed=3)) == list(islice(compose(500, seed=3), 50))
    assert not set(compose(200, seed=3)) & set(compose(200, seed=4))


def test_every_kind_of_task_is_there() -> None:
    kinds = Counter(prompt.category for prompt in compose(1000))
    assert kinds.keys() == COMPOSERS.keys()
    assert min(kinds.values()) >= 10


def test_prompts_have_no_gaps() -> None:
    for prompt in compose(3000):
        assert prompt.text.strip() == prompt.text
        assert not set("{}") & set(prompt.text), prompt


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = [*compose(20), Prompt("Grüße\nund  mehr", "x")]
    assert write_prompts(tmp_path / "new" / "p.jsonl", written) == 21
    assert read_prompts([tmp_path / "new" / "p.jsonl"]) == written


def test_lines_of_text_and_other_keys_are_prompts_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.jsonl").write_text('{"turns": ["three", "four"], "category": "qa"}\n{"text": "five"}\n')
    prompts = read_prompts([tmp_path / "a.txt", tmp_path / "b.jsonl"])
    assert [prompt.text for prompt in prompts] == ["one", "two", "three", "five"]


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\fe"
    (tmp_path / "a.jsonl").write_bytes(json.dumps({"prompt": text}, ensure_ascii=False).encode() + b"\r\n")
    (tmp_path / "b.txt").write_bytes(text.encode() + b"\r\n")
    assert [prompt.text for prompt in read_prompts([tmp_path / "a.jsonl", tmp_path / "b.txt"])] == [text] * 2


@pytest.mark.parametrize("name", ["p.jsonl", "p.ndjson", "P.JSONL"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"prompt": "x"}\n', encoding="utf-8-sig")
    assert read_prompts([tmp_path / name]) == [Prompt("x", "")]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "[" * 100_000,
        "3",
        '{"turns": []}',
        '{"turns": "x"}',
        '{"question": "x"}',
        '{"prompt": ["x"]}',
        '{"prompt": "\\ud83d"}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}\n' + line)
    with pytest.raises(PromptsError, match=r"p\.jsonl, line 2: "):
        read_prompts([tmp_path / "p.jsonl"])


def test_files_without_prompts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes(b"\xe4")
    with pytest.raises(PromptsError, match="hold no prompt"):
        read_prompts([tmp_path / "p.txt"])
    for name in ("latin.txt", "missing.txt"):
        with pytest.raises(PromptsError, match="cannot be read"):
            read_prompts([tmp_path / name])


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PromptsError, match="cannot write"):
        write_prompts(tmp_path / "file" / "p.jsonl", compose(1))
