"""The Dockerfile against the code."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.project.deployment.container_files import (
    CUDA_COMPOSE,
    DOCKERFILE,
    OURS,
    PYPROJECT,
    ROOT,
    SERVICES,
    STAGES,
    chain,
)


@pytest.mark.parametrize("name", ["gateway", "worker", "flower"])
def test_an_image_runs_the_same_command_as_its_service(name: str) -> None:
    assert f'CMD ["medusaq", "{name}"]' in STAGES[name]["lines"]


def test_every_target_is_a_stage() -> None:
    assert {service["build"]["target"] for service in OURS.values()} <= set(STAGES)


def test_both_kinds_of_worker_are_complete() -> None:
    chosen = [stage["base"] for stage in STAGES.values() if "${CUDA}" in stage["base"]]
    assert chosen
    for base in chosen:
        assert {base.replace("${CUDA}", kind) for kind in "01"} <= set(STAGES)
    assert "ARG CUDA=0\n" in DOCKERFILE
    assert "-DGGML_CUDA=on" in STAGES["toolchain-cuda1"]["lines"]
    assert SERVICES["worker"]["build"]["args"]["CUDA"] == "0"
    assert CUDA_COMPOSE["services"]["worker"]["build"]["args"]["CUDA"] == "1"


@pytest.mark.parametrize("target", ["gateway", "flower"])
def test_a_light_image_holds_no_engine_library_and_no_compiler(target: str) -> None:
    lines = chain(target)
    installs = re.findall(r"pip install (.*)", lines)
    assert installs
    assert all(install.startswith("-c requirements.lock ") for install in installs)
    assert not re.search(r"llama|torch|build-essential|\[worker\]", lines)


def test_nothing_runs_as_root() -> None:
    for service in OURS.values():
        assert "USER medusaq\n" in STAGES[service["build"]["target"]]["lines"]
        assert service["cap_drop"] == ["ALL"]


def test_every_copied_file_exists_and_is_let_through() -> None:
    sent = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    sources = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert sources == sent
    assert all((ROOT / source).exists() for source in sources)


def test_every_package_is_copied() -> None:
    find = PYPROJECT["tool"]["setuptools"]["packages"]["find"]
    packages = {pattern.rstrip("*") for pattern in find["include"]}
    for stage in ("light-build", "worker-build"):
        copied = set(re.findall(r"^COPY (\w+) ", STAGES[stage]["lines"], re.MULTILINE))
        assert packages <= copied, stage


def test_the_compiled_wheel_never_comes_from_the_cache_of_pip() -> None:
    [compiling] = re.findall(r"^RUN .*llama-cpp-python.*$", STAGES["worker-build"]["lines"], re.MULTILINE)
    assert 'CMAKE_ARGS="${BASE_CMAKE_ARGS} ${CMAKE_ARGS}"' in compiling
    assert re.search(r"wheel=\$\(sh wheel\.sh .* /wheels .*\) +&& pip install .*\"\$wheel\"", compiling)
    assert "target=/wheels" in compiling
    assert "/wheels llama_cpp.cmake)" in compiling


# A package whose wheel says with which switches it was made, and counts how often one is made.
BACKEND = """
import os, pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "slow_package-1.0-py3-none-any.whl"
    info = "slow_package-1.0.dist-info"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        wheel.writestr("switches.txt", os.environ["CMAKE_ARGS"])
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: slow-package\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    with open(os.environ["MADE"], "a") as made:
        made.write("x")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder in which pip finds the package's source."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "slow_package-1.0.zip", "w") as archive:
        archive.writestr("slow_package-1.0/backend.py", BACKEND)
        archive.writestr("slow_package-1.0/pyproject.toml", PROJECT)
        archive.writestr(
            "slow_package-1.0/PKG-INFO", "Metadata-Version: 2.1\nName: slow-package\nVersion: 1.0\n"
        )
    return folder


def test_a_wheel_is_compiled_for_each_set_of_switches_and_then_kept(source: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    included = tmp_path / "included.cmake"
    included.write_text("set(A 1)")

    def wheel(switches: str) -> str:
        """The switches that the wheel says it was made with."""
        env = {**os.environ, "CMAKE_ARGS": switches, "MADE": str(made)}
        env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(source), "PIP_CACHE_DIR": str(tmp_path / "cache")}
        command = ["sh", "tools/wheel.sh", "slow-package==1.0", str(tmp_path / "kept"), str(included)]
        path = subprocess.check_output(command, cwd=ROOT, env=env, text=True).strip()
        with zipfile.ZipFile(path) as content:
            return (
                content.read("switches.txt").decode().removeprefix(f"-DCMAKE_PROJECT_INCLUDE='{included}' ")
            )

    asked = ["", "-DGGML_NATIVE=off", "-DGGML_CUDA=on", "-DGGML_NATIVE=off", ""]
    assert [wheel(switches) for switches in asked] == asked
    assert len(made.read_text()) == 3, "the same switches again compile nothing"
    included.write_text("set(A 2)")
    wheel("")
    assert len(made.read_text()) == 4, "what CMake includes is a switch too"
