"""`medusaq run` and `up` with a stack of their own around the real engine, on a tiny model given by path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers.running import Cli, write_jsonl
from tests.engine.helpers.tiny import CONTEXT, write_tiny_gguf

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
NAME_WIDTH = 18  # in the summary
INSTRUCTION = "Feed the bad cabbage to the deaf beach dog, decade by decade. " * 3


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    runner = Cli(tmp_path)
    runner.env |= {"MEDUSAQ_ENGINE_FACTORY": "engine:load", "MEDUSAQ_BATCH_INVARIANT": "1"}
    yield runner
    runner.close()


@pytest.fixture
def model(tmp_path: Path) -> str:
    return Path(write_tiny_gguf(tmp_path / "my-own-Q8.gguf")).name


def body(row: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = row["response"]["body"]
    return answer


def text(row: dict[str, Any]) -> str:
    return str(body(row)["choices"][0]["text"])


def test_a_run_from_file_to_summary(cli: Cli, model: str) -> None:
    sampled = {"prompt": "Once", "temperature": 1.0, "ignore_eos": True, "max_tokens": 12}
    lines: list[dict[str, Any]] = [
        {"prompt": f"{INSTRUCTION}{n}", "max_tokens": 100, "ignore_eos": True} for n in range(20)
    ]
    lines += [{**sampled, "seed": 1}, {**sampled, "seed": 1}, {**sampled, "seed": 2}]
    lines.append({"prompt": "x" * CONTEXT, "max_tokens": 5})
    write_jsonl(cli.folder / "p.jsonl", lines)
    ended = cli("run", "p.jsonl", "-o", "r.jsonl", "--raw", "--model", model)
    assert ended.returncode == 1, ended.stderr
    summary = {line[:NAME_WIDTH].strip(): line[NAME_WIDTH:] for line in ended.stdout.splitlines()}
    assert summary["requests"] == "24"
    assert summary["failures"] == "1 (context_length_exceeded 1)"
    assert summary["cut by max_tokens"] == "23"
    assert summary["generated tokens"] == f"{20 * 100 + 3 * 12:,}"
    assert float(summary["tokens/s"]) > 0
    assert 0 < int(summary["batch occupancy"].removesuffix("%")) <= 100
    assert int(summary["prefix hit rate"].removesuffix("%")) > 50
    assert re.fullmatch(r".+ \(starting .+, answering .+\)", summary["wall time"])

    rows = [json.loads(line) for line in (cli.folder / "r.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows[:20]:
        assert body(row)["usage"]["completion_tokens"] == 100
        assert body(row)["model"] == "my-own-Q8"
    cached = [body(row)["usage"]["prompt_tokens_details"]["cached_tokens"] for row in rows[:20]]
    assert sum(n > len(INSTRUCTION) // 2 for n in cached) >= 15
    assert text(rows[20]) == text(rows[21]) != text(rows[22])
    error = body(rows[23])["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert sorted(path.name for path in cli.folder.iterdir()) == [model, "p.jsonl", "r.jsonl"]
    cli.gone()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"this is no model", "not a GGUF file"), (None, "corrupted or incomplete")],
)
def test_a_file_that_is_no_model_is_one_line(
    cli: Cli, model: str, content: bytes | None, message: str
) -> None:
    whole = (cli.folder / model).read_bytes()
    (cli.folder / "bad.gguf").write_bytes(whole[: len(whole) // 2] if content is None else content)
    running = cli.start("up", "--port", "0", "--no-flower", "--model", "bad.gguf")
    assert running.wait() == 3
    assert running.lines[-1].startswith("error: the model cannot be loaded: ")
    assert "bad.gguf" in running.lines[-1]
    assert message in running.lines[-1]
    assert "Traceback" not in running.text()
    cli.gone()


def test_heads_that_are_none_are_one_line(cli: Cli, model: str) -> None:
    (cli.folder / "bad.safetensors").write_bytes(b"no heads")
    running = cli.start(
        "up",
        "--port",
        "0",
        "--no-flower",
        "--model",
        model,
        MEDUSAQ_HEADS=str(cli.folder / "bad.safetensors"),
    )
    assert running.wait() == 3
    assert running.lines[-1].startswith("error: the draft heads cannot be loaded: ")
    assert "bad.safetensors" in running.lines[-1]
    cli.gone()
