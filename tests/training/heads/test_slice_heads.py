"""`medusaq slice-heads` as a person runs it, and what it says when it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.medusa.layouts import recognise
from tests.cli.helpers.in_process import InProcessCli
from tests.training.heads.test_slicing import VOCAB, full_heads

ROOT = Path(__file__).parents[3]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "cli", "slice-heads", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_from_published_heads_to_sliced_ones(tiny_gguf: str, tmp_path: Path) -> None:
    from safetensors import safe_open

    torch.save(full_heads(), tmp_path / "medusa_lm_head.pt")
    (tmp_path / "text.txt").write_text("a little text")
    output = tmp_path / "out.safetensors"
    options = ["--model", tiny_gguf, "-o", output, "--tokens", 64, "--text", tmp_path / "text.txt"]
    ended = run(tmp_path, *options)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == (
        f"{output}: 5 heads, 64 of {VOCAB} tokens, which are 100.0% of the counted text\n"
    )
    with safe_open(output, framework="numpy") as file:
        assert len(recognise(file.keys()).lm_heads) == 5
        assert file.metadata()["source"] == str(tmp_path)


def test_what_cannot_be_is_one_line(tiny_gguf: str, tmp_path: Path, in_process: InProcessCli) -> None:
    torch.save(full_heads(), tmp_path / "heads.pt")
    heads, output = tmp_path / "heads.pt", tmp_path / "out.safetensors"
    (tmp_path / "some.txt").write_text("text")
    cases: list[tuple[int, str, list[object]]] = [
        (1, "a draft vocabulary of 8192 tokens is not possible: the model has 320", [heads]),
        (1, "no such file or folder", [tmp_path / "missing", "--tokens", 64]),
        (2, "missing.txt cannot be read", [heads, "--tokens", 64, "--text", tmp_path / "missing.txt"]),
    ]
    for code, reason, arguments in cases:
        ended = in_process("slice-heads", *arguments, "--model", tiny_gguf, "-o", output)
        assert (ended.returncode, reason in ended.stderr) == (code, True), ended.stderr
        assert ended.stderr.count("\n") == 1
    ended = in_process("slice-heads", heads, "--model", tmp_path / "some.txt", "-o", output)
    assert (ended.returncode, "not a GGUF file" in ended.stderr) == (3, True)
    ended = in_process(
        "slice-heads", heads, "--model", tiny_gguf, "-o", tmp_path / "none" / "out.safetensors"
    )
    assert (ended.returncode, "does not exist" in ended.stderr) == (2, True)
    assert not output.exists()
