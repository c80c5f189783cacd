"""What llama-batched-bench printed is read, and one that does not work is told in one line."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from common.processor import usable_cores
from tests.benchmarks.baselines.llama_batched_bench import NO_TENSOR, step_ms, times
from tests.benchmarks.common import ToolFailed
from tests.support.workers import ROOT

# As the tool prints them, around the lines of its log.
LINE = (
    '{"n_kv_max": 4096, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 1, '
    '"n_gpu_layers": -1, "n_threads": 2, "n_threads_batch": 2, "pp": %d, "tg": 16, "pl": 2, "n_kv": 200, '
    '"t_pp": 0.233810, "speed_pp": 547.453064, "t_tg": %f, "speed_tg": 36.532974, "t": 3.7, "speed": 68.4}'
)


def tool(folder: Path, script: str) -> Path:
    path = folder / "llama-batched-bench"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_line_that_was_asked_for_gives_the_mean_of_its_steps_the_faster_way(tmp_path: Path) -> None:
    printed = "\n".join(["", LINE % (234, 9.0), LINE % (84, 0.4), "llama_perf: load time = 1 ms"])
    slower = printed.replace("0.400000", "0.800000")
    script = f"echo \"$@\" >> {tmp_path}/asked\ncase \"$*\" in *'attn on'*) cat <<'END'\n{slower}\nEND\n;;"
    prints = tool(tmp_path, f"{script} *) cat <<'END'\n{printed}\nEND\n;; esac")
    assert step_ms(prints, tmp_path / "m.gguf", 2, 100, 16, 2048) == pytest.approx(25.0)
    with_flash, without = (tmp_path / "asked").read_text().splitlines()
    assert without == with_flash.replace("--flash-attn on", "--flash-attn off") != with_flash
    options = dict(pairwise(without.split()))
    assert (options["-c"], options["-t"]) == ("4096", str(usable_cores()))


def test_a_backend_is_named_to_the_tool_and_loaded_by_it(tmp_path: Path) -> None:
    prints = tool(tmp_path, f"echo $GGML_BACKEND_PATH \"$@\" > {tmp_path}/asked\necho '{LINE % (84, 0.4)}'")
    model, backend = tmp_path / "m.gguf", tmp_path / "kernels.so"
    found = times(prints, model, 2, 100, 16, 2048, flash="on", kv_type="q8_0", backend=backend)
    assert found.prompt_token_ms == pytest.approx(233.81 / 84, abs=1e-3)
    first, *asked = (tmp_path / "asked").read_text().split()
    options = dict(pairwise(asked))
    assert first == str(backend)
    assert options["--override-tensor"] == NO_TENSOR
    assert options["--cache-type-k"] == options["--cache-type-v"] == "q8_0"


@pytest.mark.parametrize(
    ("status", "script"),
    [(1, "echo unable to load model >&2; exit 1"), (0, "echo unable to load model"), (0, "echo '{}'")],
)
def test_one_that_measures_nothing_is_told_with_its_last_words(
    tmp_path: Path, status: int, script: str
) -> None:
    with pytest.raises(ToolFailed) as failed:
        step_ms(tool(tmp_path, script), tmp_path / "m.gguf", 2, 100, 16, 2048)
    said = "{}" if "{}" in script else "unable to load model"
    assert str(failed.value) == f"llama-batched-bench ended with {status} and measured nothing: {said}"


@pytest.mark.slow
def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    works, none = str(tool(tmp_path, "exit 0")), str(tmp_path / "none")
    for options, line in (
        (["--batched-bench", none], f"argument --batched-bench: {none}: there is no such program"),
        (
            ["--batched-bench", works, "--record", f"{none}/f"],
            f"argument --record: {none}/f: there is no such folder",
        ),
        (
            ["--batched-bench", works, "--pairs", "0"],
            "argument --pairs: 0: must be a whole number of at least 1",
        ),
        (["--batched-bench", works, "--model", none], f"{none}: no such file"),
    ):
        command = [sys.executable, "-m", "tests.benchmarks", "--only", "cells", *options]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode != 0
        assert ended.stderr.splitlines()[-1].endswith(f"error: {line}")
        assert "Traceback" not in ended.stderr
