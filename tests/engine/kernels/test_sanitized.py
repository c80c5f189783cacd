"""Random calls of the kernels in a process that sanitizers watch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.llama_build import library_folder
from engine.kernels.build import compile_library

pytestmark = pytest.mark.slow
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compile_library(made := tmp_path_factory.mktemp("sanitized") / "kernels.so", library_folder(), SANITIZED)
    return made


@pytest.mark.parametrize("calls", ["attention", "graphs", "products"])
def test_no_access_is_out_of_bounds_and_nothing_is_undefined(sanitized: Path, calls: str) -> None:
    runtime = subprocess.run(
        ["c++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-m", f"tests.engine.kernels.{calls}", str(sanitized), "60"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
