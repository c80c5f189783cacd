"""`medusaq bench decode`: the file it writes, and every wrong input as one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli
from tests.engine.helpers.tiny import write_tiny_gguf

ROW = {"question_id": 1, "category": "qa", "turns": ["abc abc abc", "and then?"]}


@pytest.fixture
def rows(cli: Cli) -> Path:
    path = cli.folder / "rows.jsonl"
    path.write_text("".join(json.dumps(ROW | {"turns": [f"abc {i} abc"]}) + "\n" for i in range(3)))
    return path


def test_rows_are_written_and_shown(in_process: InProcessCli, rows: Path) -> None:
    model = write_tiny_gguf(in_process.folder / "tiny.gguf")
    in_process.env["XDG_CACHE_HOME"] = str(in_process.folder / "cache")
    command = ("bench", "decode", "--prompts", rows.name, "--requests", "1,2", "--max-tokens", "12")
    ended = in_process(*command, "--model", model, "--json", "out.json", "--limit", "2")
    assert ended.returncode == 0, ended.stderr
    written = json.loads((in_process.folder / "out.json").read_text())
    assert [(row["requests"], row["category"]) for row in written] == [(1, "all"), (1, "qa"), (2, "all")]
    assert all(row["n_prompts"] == 2 for row in written)
    assert all(row["ratio"] > 0 and row["ratio_low"] <= row["ratio"] + 1e-9 for row in written)
    assert "drafts from grammar, lookup" in ended.stdout


def test_it_brings_prompts_of_its_own(in_process: InProcessCli) -> None:
    model = write_tiny_gguf(in_process.folder / "tiny.gguf")
    in_process.env["XDG_CACHE_HOME"] = str(in_process.folder / "cache")
    command = ("bench", "decode", "--requests", "1", "--max-tokens", "4", "--model", model)
    ended = in_process(*command, "--json", "out.json")
    assert ended.returncode == 0, ended.stderr
    written = json.loads((in_process.folder / "out.json").read_text())
    kinds = {row["category"]: row["n_prompts"] for row in written}
    assert kinds.pop("all") == 24
    assert kinds == dict.fromkeys(("explain", "rewrite", "summarise", "extract", "code", "reason"), 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not a JSON object with category and turns"),
        ('{"category": "qa"}', "line 1: not a JSON object with category and turns"),
        ('{"category": "qa", "turns": []}', "line 1: not a JSON object with category and turns"),
        ('{"category": 1, "turns": ["x"]}', "line 1: category and the first of turns must be text"),
        ('{"category": "qa", "turns": [""]}', "line 1: category and the first of turns must be text"),
        ('{"category": "qa", "turns": "Why?"}', "line 1: category and the first of turns must be text"),
        ('{"category": "qa", "turns": ["\\ud83d"]}', "line 1: category and the first of turns must be text"),
        ("", "the file has no prompts"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(in_process: InProcessCli, line: str, message: str) -> None:
    (in_process.folder / "rows.jsonl").write_text(line + "\n")
    ended = in_process("bench", "decode", "--prompts", "rows.jsonl")
    assert ended.returncode == 2
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_any_json_line_is_one_line(in_process: InProcessCli) -> None:
    """With a byte order mark, and characters that end lines elsewhere."""
    (in_process.folder / "rows.jsonl").write_bytes(
        b"\xef\xbb\xbf" + '{"category": "qa", "turns": ["a\u2028b\x85c"]}\n'.encode()
    )
    ended = in_process("bench", "decode", "--prompts", "rows.jsonl", "--model", "missing.gguf")
    assert ended.returncode == 3, ended.stderr


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--prompts", "rows.jsonl", "--json", "."), 2, "--json: . is a folder"),
        (("--prompts", "missing.jsonl"), 2, "missing.jsonl: cannot be read: No such file"),
        (("--prompts", "rows.jsonl", "--requests", "1,x"), 2, "must be a list of numbers"),
        (("--prompts", "rows.jsonl", "--requests", "0"), 2, "must be between 1 and 62"),
        (("--prompts", "rows.jsonl", "--json", "no/out.json"), 2, "the folder no does not exist"),
        (("--prompts", "rows.jsonl", "--model", "no.gguf"), 3, "no.gguf: no such file"),
    ],
)
@pytest.mark.usefixtures("rows")
def test_wrong_options_are_one_line(
    in_process: InProcessCli, options: tuple[str, ...], code: int, message: str
) -> None:
    ended = in_process("bench", "decode", *options)
    assert ended.returncode == code
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_heads_that_are_no_heads_are_refused(in_process: InProcessCli, rows: Path) -> None:
    model = write_tiny_gguf(in_process.folder / "tiny.gguf")
    (in_process.folder / "heads.safetensors").write_bytes(b"no heads")
    ended = in_process(
        "bench", "decode", "--prompts", rows.name, "--model", model, "--heads", "heads.safetensors"
    )
    assert ended.returncode == 1
    assert "heads.safetensors: cannot be read" in ended.stderr


def test_a_file_that_is_not_text(in_process: InProcessCli) -> None:
    (in_process.folder / "rows.jsonl").write_bytes(b"\xff\xfe")
    ended = in_process("bench", "decode", "--prompts", "rows.jsonl")
    assert ended.returncode == 2
    assert "not UTF-8" in ended.stderr
