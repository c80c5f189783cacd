"""How the kernels are compiled, and what is said where they cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from common.llama_build import LIBRARY_VARIABLE, library_folder
from engine.kernels import build
from engine.kernels.build import KernelsMissing, library


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Those of llama.cpp, without the kernels."""
    copied = tmp_path / "libraries"
    without = shutil.ignore_patterns("libmedusaq-*")
    shutil.copytree(library_folder(), copied, symlinks=True, ignore=without)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(copied))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return copied


@pytest.mark.slow
def test_they_are_compiled_once_beside_llama_cpp(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = library()
    assert made.parent == libraries
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library() == made
    assert [path.name for path in libraries.glob("*medusaq*")] == [made.name]


@pytest.mark.slow
def test_they_lie_in_the_cache_where_the_environment_cannot_be_written(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = libraries / "file"
    away.touch()
    real = build.library_folder
    monkeypatch.setattr(build, "library_folder", lambda: Unwritable(real()))
    assert library().parent == build.cache_folder() / "kernels"


class Unwritable(type(Path())):  # type: ignore[misc]
    """A folder in which nothing can be made."""

    def mkdir(self, *_args: object, **_options: object) -> None:
        raise PermissionError


def test_another_ggml_has_none(libraries: Path) -> None:
    base = next(libraries.glob("libggml-base.so.*.*.*"))
    base.rename(base.with_name("libggml-base.so.0.26.0"))
    with pytest.raises(KernelsMissing, match=r"they are for ggml 0\.25\.3, and .* has 0\.26\.0"):
        library()


def test_another_processor_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(KernelsMissing, match="there are none for riscv64"):
        library()


@pytest.mark.usefixtures("libraries")
def test_without_a_compiler_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KernelsMissing, match=r"no C\+\+ compiler \(no-such-compiler\) is here"):
        library()


@pytest.mark.usefixtures("libraries")
def test_a_compiler_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(KernelsMissing, match="false cannot compile them: exit code 1"):
        library()
