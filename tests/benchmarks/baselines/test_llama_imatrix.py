"""What llama-imatrix wrote is read as ours is, and one that does not work is one line."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from tests.benchmarks.baselines.llama_imatrix import compared, of_llama_cpp
from tests.benchmarks.common import ToolFailed, program
from tests.support.workers import ROOT


def tool(folder: Path, script: str) -> Path:
    path = folder / "llama-imatrix"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_sums_are_divided_by_the_rows_that_each_matrix_met(tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    writer = GGUFWriter(str(made), "imatrix")
    for name, sums, counts in (
        ("plain.weight", [[2.0, 4.0, 6.0]], [[2.0]]),
        ("experts.weight", [[2.0, 4.0, 6.0], [5.0, 10.0, 15.0]], [[2.0], [5.0]]),
    ):
        writer.add_tensor(f"{name}.in_sum2", np.array(sums, np.float32))
        writer.add_tensor(f"{name}.counts", np.array(counts, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    copies = tool(tmp_path, f'while [ "$1" != -o ]; do shift; done; cp {made} "$2"')
    found = of_llama_cpp(copies, "model.gguf", tmp_path / "text.txt")
    assert {name: values.tolist() for name, values in found.items()} == {
        "plain.weight": [1, 2, 3],
        "experts.weight": [1, 2, 3, 1, 2, 3],
    }
    ours = {"plain.weight": np.array([1, 2, 3.3], np.float32), "own.weight": np.ones(3, np.float32)}
    assert compared(ours, found) == (
        "1 matrices, 3 columns: apart by 0.0e+00 in the median, 1.0e-01 at most; "
        "only ours: ['own.weight'], only the tool's: ['experts.weight']"
    )


@pytest.mark.parametrize(("status", "script"), [(3, "echo no such model; exit 3"), (0, "echo no such model")])
def test_one_that_makes_nothing_is_told_with_its_last_words(tmp_path: Path, status: int, script: str) -> None:
    with pytest.raises(ToolFailed) as failed:
        of_llama_cpp(tool(tmp_path, script), "model.gguf", tmp_path / "text.txt")
    assert str(failed.value) == f"llama-imatrix ended with {status} and made no matrix: no such model"


def test_a_program_is_a_path_or_what_path_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tool(tmp_path, "exit 0")
    assert program(str(made)) == made
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert program("llama-imatrix") == made
    with pytest.raises(argparse.ArgumentTypeError, match="nowhere: there is no such program"):
        program("nowhere")


@pytest.mark.slow
def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    for path, line in (
        (tmp_path / "nowhere", f"argument --imatrix: {tmp_path}/nowhere: there is no such program"),
        (tool(tmp_path, "echo broken; exit 1"), "llama-imatrix ended with 1 and made no matrix: broken"),
    ):
        command = [sys.executable, "-m", "tests.benchmarks", "--only", "importance", "--imatrix", str(path)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode != 0
        assert ended.stderr.splitlines()[-1].endswith(f"error: {line}")
        assert "Traceback" not in ended.stderr
