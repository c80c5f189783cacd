"""How llama.cpp is compiled, and its machine code.

GCC must keep the rows and columns of the AMX tiles that llama.cpp configures: without them the first
instruction on a tile ends the process with SIGILL. A source with llama.cpp's pattern is compiled for a
processor with AMX, which need not be this one.
"""

from __future__ import annotations

import importlib.util
import io
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import install
from tools.install import Display, Progress

ROOT = Path(__file__).parents[3]
AMX = "-O3 -march=sapphirerapids"
COLUMNS, ROWS = 16, 48  # bytes of the 64 where the columns and rows of the first tile are
SIZES = {"zmm": 64, "ymm": 32, "xmm": 16}
SUFFIXES = {"movb": 1, "movw": 2, "movl": 4, "movq": 8}
OPERAND = re.compile(r"(-?0x[0-9a-f]+|)\((%\w+)\)$")
SOURCE = """
#include <immintrin.h>
#include <cstdint>
struct TileConfig {
    uint8_t palette = 0, start = 0, reserved[14] = {};
    uint16_t columns[16] = {};
    uint8_t rows[16] = {};
};
void configure() {
    static thread_local bool done = false;
    if (done) return;
    alignas(64) TileConfig config = {};
    config.palette = 1;
    for (int i = 0; i < 8; i++) { config.rows[i] = i < 2 ? 8 : 16; config.columns[i] = i < 4 ? 32 : 64; }
    _tile_loadconfig(&config);
    done = true;
}
"""

with_amx = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("objdump") or not shutil.which("g++"),
    reason="AMX is of x86-64; binutils and g++ are needed",
)


def configured(code: Path) -> Iterator[bool]:
    """For each ldtilecfg: whether columns and rows hold something else than zeros before it."""
    text = subprocess.check_output(["objdump", "-d", "--no-show-raw-insn", code], text=True)
    zeros: set[str] = set()  # registers
    stored: dict[tuple[str, int], bool] = {}  # base register, byte -> whether it is a value
    for line in text.splitlines():
        name, _, operands = line.partition("\t")[2].split("#")[0].strip().partition(" ")
        *sources, target = re.split(r",(?![^(]*\))", operands.strip()) if operands else [""]
        register = re.sub(r"^%[xyz]mm", "mm", target)
        if name == "ldtilecfg":
            at, base = _place(target)
            yield base == "%rip" or all(stored.get((base, at + byte)) for byte in (COLUMNS, ROWS))
        elif "xor" in name and len(set(sources)) == 1 and (sources[0] == target or len(sources) > 1):
            zeros.add(register)
        elif "mov" in name and "(" in target and sources:
            at, base = _place(target)
            value = re.sub(r"^%[xyz]mm", "mm", sources[-1]) not in zeros and sources[-1] != "$0x0"
            for byte in range(_size(name, sources[-1])):
                stored[base, at + byte] = value
        else:
            zeros.discard(register)


def _place(operand: str) -> tuple[int, str]:
    found = OPERAND.search(operand)
    return (int(found[1] or "0", 16), found[2]) if found else (0, "")


def _size(name: str, source: str) -> int:
    if source.startswith("$"):
        return SUFFIXES.get(name, 4)
    wide = SIZES.get(source[1:4])
    return wide or (8 if source.startswith("%r") and source[-1] not in "dwb" else 4)


def compiled(folder: Path, *cmake: str, **env: str) -> list[bool]:
    """The source as a project that is named as llama.cpp's, built by CMake."""
    (folder / "configure.cpp").write_text(SOURCE)
    project = (
        "cmake_minimum_required(VERSION 3.21)\nproject(ggml CXX)\nadd_library(ggml SHARED configure.cpp)\n"
    )
    (folder / "CMakeLists.txt").write_text(project)
    build = folder / "build"
    for command in (["-S", str(folder), "-B", str(build), *cmake], ["--build", str(build)]):
        subprocess.run(["cmake", *command], env={**os.environ, **env}, check=True, capture_output=True)
    return list(configured(build / "libggml.so"))


@with_amx
@pytest.mark.slow
def test_a_tile_configuration_reaches_the_processor_whole(tmp_path: Path) -> None:
    assert compiled(tmp_path, f"-DCMAKE_PROJECT_INCLUDE={install.INCLUDED}", CXXFLAGS=AMX) == [True]


@with_amx
@pytest.mark.slow
def test_so_it_does_with_the_switches_for_pip(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "install.md").read_text(encoding="utf-8")
    switches = {*re.findall(r'CXXFLAGS="([^"]+)"', page)}
    assert len(switches) == 1
    assert compiled(tmp_path, CXXFLAGS=f"{AMX} {switches.pop()}") == [True]


@with_amx
@pytest.mark.slow
def test_without_either_gcc_12_drops_it(tmp_path: Path) -> None:
    if not re.search(r"^g\+\+ .* 12\.", subprocess.check_output(["g++", "--version"], text=True)):
        pytest.skip("another compiler")
    assert compiled(tmp_path, CXXFLAGS=AMX) == [False]


@with_amx
def test_the_llama_cpp_of_this_environment_has_it() -> None:
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    libraries = [*Path(spec.origin).parent.glob("lib/libggml-cpu*.so")]
    assert libraries
    for library in libraries:
        assert all(configured(library)), f"{library}: tiles without rows end the process with SIGILL"


# A pip that fails if the expression holds, else makes a wheel.
BUILDS_IF = """
import os, pathlib, sys
reduced = "MEDUSAQ_WHOLE" not in os.environ["CMAKE_ARGS"]
status = "error" if {} else "done"
with open(os.environ["PIP_LOG"], "a") as log:
    for line in ("started", f"finished with status '{{status}}'"):
        print(f"  Building wheel for llama-cpp-python (pyproject.toml): {{line}}", file=log)
with open("{}", "a") as asked:
    print(os.environ["CMAKE_ARGS"], file=asked)
if status == "done":
    (pathlib.Path(sys.argv[sys.argv.index("-w") + 1]) / "llama.whl").touch()
sys.exit(status == "error")
"""


@pytest.mark.parametrize(("fails", "code", "attempts"), [("reduced", 0, 2), ("True", 1, 2), ("False", 0, 1)])
@pytest.mark.slow
def test_a_reduced_build_that_fails_is_followed_by_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, code: int, attempts: int
) -> None:
    asked = tmp_path / "asked"
    python = tmp_path / "python3"
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(BUILDS_IF.format(fails, asked), encoding="utf-8")
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    progress, display = Progress({"llama-cpp-python"}), Display(io.StringIO())
    ended, wheel = install.compile_llama_cpp("llama-cpp-python==1", tmp_path / "log", progress, display)
    assert (ended, progress.build_failed) == (code, bool(code))
    assert bool(wheel) != bool(code)
    lines = asked.read_text().splitlines()
    assert all(str(install.INCLUDED) in line for line in lines)
    assert [install.WHOLE not in line for line in lines] == [True, False][:attempts]


def test_the_reduced_build_leaves_ggml_as_it_is(tmp_path: Path) -> None:
    """In CMake itself, with projects of the names that llama-cpp-python has."""
    show = 'message(NOTICE "${PROJECT_NAME}: ${LLAMA_BUILD_COMMON} ${CMAKE_UNITY_BUILD}")'
    for folder, name, more in (
        (".", "llama_cpp", 'set(LLAMA_BUILD_COMMON ON CACHE BOOL "" FORCE)\nadd_subdirectory(llama)'),
        ("llama", "llama.cpp", 'option(LLAMA_BUILD_COMMON "" ON)\nadd_subdirectory(ggml)'),
        ("llama/ggml", "ggml", ""),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        text = f"cmake_minimum_required(VERSION 3.21)\nproject({name} NONE)\n{more}\n{show}\n"
        (tmp_path / folder / "CMakeLists.txt").write_text(text, encoding="utf-8")
    command = [
        "cmake",
        f"-DCMAKE_PROJECT_INCLUDE={install.INCLUDED}",
        "-S",
        str(tmp_path),
        "-B",
        str(tmp_path / "build"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert [line for line in done.stderr.splitlines() if line.startswith(("llama", "ggml"))] == [
        "ggml: OFF OFF",
        "llama.cpp: OFF ON",
        "llama_cpp: ON ",
    ]
