"""What a dry run tells, with the tokenizer of the default model, and that it starts nothing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from cli.prompts.run_time import LEAST_SHARE, OVERHEAD_S
from engine import EngineConfig
from engine.base.config import AS_SHIPPED, BF16
from engine.host.measurement_cache import write_measurement
from engine.llama.model import Model, default_model_path
from engine.weights import format_selection
from engine.weights.format_selection import Timing
from tests.cli.helpers.in_process import InProcessCli


def table(folder: Path) -> None:
    rows = "".join(f'{n},"word {n}"\n' for n in range(1, 5))
    (folder / "r.csv").write_text(f"n,text\n{rows}5,\n", encoding="utf-8")


def summary(text: str) -> dict[str, str]:
    return {line[:18].strip(): line[18:] for line in text.splitlines() if line[16:18] == "  "}


def test_prompts_tokens_and_time(
    in_process: InProcessCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    table(in_process.folder)
    command = (
        "run",
        "r.csv",
        "-o",
        "o.csv",
        "--template",
        "Say {{ text }}",
        "--max-tokens",
        "10",
        "--dry-run",
    )
    ended = in_process(*command, **cache)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(
        "row 1 (row-1):\nSay word 1\n\nrow 2 (row-2):\nSay word 2\n\nrow 3 (row-3):\n"
    )
    assert "row 4" not in ended.stdout
    told = summary(ended.stdout)
    assert (told["requests"], told["empty"]) == ("5", "text in 1 of 5 rows")
    assert told["answer tokens"] == "at most 50"
    assert told["time"].startswith("not known: ")
    model = Model(default_model_path(), vocabulary_only=True)
    own = [len(model.tokenize(f"Say word {n}", add_bos=False, special=True)) for n in range(1, 5)]
    own.append(len(model.tokenize("Say ", add_bos=False, special=True)))
    template = int(told["prompt tokens"]) - sum(own)
    assert template > 0
    assert template % 5 == 0, "the chat template adds as many to each"

    monkeypatch.setenv("XDG_CACHE_HOME", cache["XDG_CACHE_HOME"])
    config = EngineConfig(model=default_model_path(), threads=1)
    shipped, bf16 = Timing(1.0, 8.0, 0.5, 16), Timing(1.0, 1.0, 0.1, 16)
    key = format_selection._key(default_model_path(), config)
    write_measurement("formats", key, {AS_SHIPPED: asdict(shipped), BF16: asdict(bf16)})
    prompts, answers = int(told["prompt tokens"]) * 0.1, 50 * (1.0 + 0.0 * 4 / 15) / 5
    least, most = OVERHEAD_S + prompts + LEAST_SHARE * answers, OVERHEAD_S + 3 * (prompts + answers)
    ended = in_process(*command, **cache)
    unknown = "a run of some rows, as with --limit 10, tells how long the answers are"
    assert summary(ended.stdout)["time"] == f"about {least:.0f} to {most:.0f} s, beside starting; {unknown}"
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["cache", "r.csv"]


def test_of_requests_and_with_a_gateway(in_process: InProcessCli) -> None:
    (in_process.folder / "p.jsonl").write_text(
        '{"messages": [{"role": "system", "content": "short"}, {"role": "user", "content": "x"}]}\nbroken\n',
        encoding="utf-8",
    )
    ended = in_process("run", "p.jsonl", "-o", "o.jsonl", "--dry-run", "--url", "http://127.0.0.1:9")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("line 1 (line-1):\n[system] short\n[user] x\n")
    told = summary(ended.stdout)
    assert told["prompt tokens"] == "not counted: the model is at the gateway"
    assert told["invalid"] == "1; `medusaq validate p.jsonl` lists all problems"
    ended = in_process("run", "p.jsonl", "-o", "o.jsonl", "--dry-run", "--model", "none.gguf")
    assert ended.returncode == 3
    assert ended.stderr.startswith("error: none.gguf: ")
    assert sorted(path.name for path in in_process.folder.iterdir()) == ["p.jsonl"]
