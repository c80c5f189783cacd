"""The images of an earlier release, built of its own Dockerfile and Compose file."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.containers.bases import PYTHON, Bases
from tests.containers.docker import OURS, docker
from tests.containers.system import System
from tests.release.earlier_state import STATES, checked_out
from tests.support.workers import ROOT

TOOLCHAIN = "toolchain-cuda0"  # a stage of the Dockerfile
REQUIREMENT = "$(grep -o '^llama-cpp-python==[^ ]*' requirements.lock)"
# The earlier Dockerfile gets its llama.cpp from here, where the version is the same: compiling takes long.
COMPILED = f"""
FROM {OURS}/{TOOLCHAIN}
RUN python3 -m venv /opt/venv
WORKDIR /src
COPY requirements.lock tools/wheel.sh engine/llama/llama_cpp.cmake ./
RUN --mount=type=cache,target=/wheels,sharing=locked \\
    CMAKE_ARGS="$BASE_CMAKE_ARGS " sh wheel.sh {REQUIREMENT} /wheels llama_cpp.cmake > /wheel \\
    && mkdir /compiled && cp $(cat /wheel) /compiled
ENV PIP_FIND_LINKS=/compiled
"""


def revision() -> str:
    """The last tagged release before this; without one the newest commit whose state folder is kept."""
    asked = ["git", "describe", "--tags", "--abbrev=0", "HEAD^"]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    if told.returncode == 0:
        return told.stdout.strip()
    names = [path.name.partition(".")[0] for path in STATES.glob("*.tar.gz")]
    log = ["git", "log", "--no-walk=sorted", "--format=%h", *names]
    return subprocess.check_output(log, cwd=ROOT, text=True).split()[0]


def system(commit: str, bases: Bases, folder: Path, like: System) -> System:
    """With the settings and ports of the present one, built."""
    code = checked_out(commit, folder)
    (code / "models").mkdir(exist_ok=True)
    contexts = {}
    if bases.images[PYTHON] != PYTHON:
        dockerfile = code / "Dockerfile"  # whose `# syntax` would be asked from a registry
        text = dockerfile.read_text(encoding="utf-8")
        dockerfile.write_text(text.replace("# syntax=docker/dockerfile:1\n", ""), encoding="utf-8")
    if _lines(code) == _lines(ROOT):
        contexts[TOOLCHAIN] = _compiled(bases)
    found = System(code, commit[:12], bases, like.work, contexts, like.settings, like.ports)
    found.build()
    return found


def _lines(code: Path) -> set[str]:
    """Of the lock file, about llama-cpp-python itself."""
    text = (code / "requirements.lock").read_text(encoding="utf-8")
    return {line.split()[0] for line in text.splitlines() if line.startswith("llama-cpp-python==")}


def _compiled(bases: Bases) -> str:
    """An image with a compiler and the wheel that the present build compiled."""
    base = bases.images[PYTHON]
    context = ("--build-context", f"{PYTHON}=docker-image://{base}") if base != PYTHON else ()
    docker("build", *context, "--target", TOOLCHAIN, "-t", f"{OURS}/{TOOLCHAIN}", str(ROOT))
    name = f"{OURS}/{TOOLCHAIN}-compiled"
    docker("build", "-t", name, "-f", "-", str(ROOT), text=COMPILED)
    return name
