"""Prompts that a model writes itself: each is new, a killed run goes on, a model that cannot is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from engine.llama.model import Model, default_model_path
from tests.engine.helpers.tiny import write_tiny_gguf
from training.base.errors import PromptsError
from training.prompts import self_written
from training.prompts.prompts import read_prompts
from training.prompts.self_written import CATEGORY, beginning, write

pytestmark = pytest.mark.slow


def test_it_begins_where_the_user_would_write() -> None:
    text = beginning(Model(default_model_path(), vocabulary_only=True))
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\n")


def test_a_run_that_was_killed_goes_on(tmp_path: Path, quiet: Console) -> None:
    path = tmp_path / "prompts.jsonl"
    kept = json.dumps({"text": "What is a cedar?", "category": CATEGORY}) + "\n"
    path.write_text(kept + '{"text": "What is a', encoding="utf-8")
    write(path, 5, default_model_path(), quiet, slots=4)
    assert path.read_text(encoding="utf-8").startswith(kept)
    found = read_prompts([path])
    assert len({prompt.text for prompt in found}) == len(found) == 5
    assert {prompt.category for prompt in found} == {CATEGORY}
    before = path.read_bytes()
    write(path, 4, default_model_path(), quiet)
    assert path.read_bytes() == before, "there are enough"


def test_a_model_that_writes_none_is_named(
    tiny_gguf: str, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_written, "MAX_TOKENS", 2)
    with pytest.raises(PromptsError, match=r"tiny\.gguf has written 0 prompts in 41 attempts"):
        write(tmp_path / "prompts.jsonl", 2, tiny_gguf, quiet)
    silent = write_tiny_gguf(tmp_path / "silent.gguf", chat_template=None)
    with pytest.raises(PromptsError, match="without a chat template writes no prompts"):
        write(tmp_path / "prompts.jsonl", 2, silent, quiet)
    bare = write_tiny_gguf(tmp_path / "bare.gguf", chat_template="{{ messages[0]['content'] }}")
    with pytest.raises(PromptsError, match="its chat template begins with the user's text"):
        write(tmp_path / "prompts.jsonl", 2, bare, quiet)
    with pytest.raises(PromptsError, match=r"none/prompts\.jsonl"):
        write(tmp_path / "none" / "prompts.jsonl", 2, default_model_path(), quiet)
