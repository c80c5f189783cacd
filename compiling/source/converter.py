"""Runs llama.cpp's converter of checkpoints, in the version of the installed runtime.

The source distribution of llama-cpp-python contains it, with the llama.cpp from which the wheel is built; it
is fetched from there once. It runs in its own process, whose memory is freed at its end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

from common.llama_build import cache_folder
from compiling.base.errors import CompileError, ConverterError, RoomError, SourceError, UnknownError
from compiling.base.progress import Progress
from compiling.source import convert_child

SETTING = "MEDUSAQ_CONVERTER"
PACKAGE = "llama-cpp-python"
SCRIPT = "convert_hf_to_gguf.py"
NEEDED = (SCRIPT, "LICENSE", "conversion/", "gguf-py/gguf/", "models/templates/")
PACKAGES = ("gguf", "numpy", "safetensors", "sentencepiece", "torch", "transformers")
LOOK_S = 0.2  # between two checks of how much is written
ERROR_LINE = re.compile(r"(?:ERROR:[\w.-]+:|(?:[\w.]+\.)?(\w+(?:Error|Exception)): )(.*)")
UNKNOWN_ARCHITECTURE = re.compile(r"Model (\S+) is not supported")
UNKNOWN_TOKENIZER = "BPE pre-tokenizer was not recognized"


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the converter over a folder. outtype: f32, f16 or bf16; vocab_only: write no weights."""

    checkpoint: Path
    name: str
    outfile: Path
    outtype: str = "f32"
    vocab_only: bool = False

    def arguments(self) -> list[str]:
        only = ["--vocab-only"] if self.vocab_only else []
        given = ["--outfile", str(self.outfile), "--outtype", self.outtype, "--model-name", self.name]
        return [str(self.checkpoint), *given, *only]


def runtime_version() -> str:
    return Version(version(PACKAGE)).public


def find(progress: Progress) -> Path:
    """The folder of llama.cpp with the converter, which is fetched if necessary. Raises ConverterError."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConverterError(f"converting needs {', '.join(missing)}: pip install 'medusaq[compile]'")
    if named := os.environ.get(SETTING):
        if not Path(named, SCRIPT).is_file():
            raise ConverterError(f"{SETTING}: {named} holds no {SCRIPT}; name a checkout of llama.cpp")
        return Path(named)
    kept = cache_folder() / f"converter-{runtime_version()}"
    if not (kept / SCRIPT).is_file():
        progress.say(
            f"fetching llama.cpp's converter from the source of {PACKAGE} {runtime_version()} (77 MB, once)"
        )
        try:
            _fetch(kept)
        except OSError as error:
            raise ConverterError(
                f"{kept}: llama.cpp's converter cannot be stored: {error.strerror}"
            ) from error
    return kept


def _fetch(kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="converter-") as work:
        unpacked = Path(work, "llama.cpp")
        _unpack(_download(Path(work, "sdist")), unpacked)
        try:
            unpacked.rename(kept)
        except OSError:
            if not (kept / SCRIPT).is_file():  # otherwise another process was faster
                raise


def _download(folder: Path) -> Path:
    """Download with pip, which uses the user's index, proxy and certificates."""
    wanted = f"{PACKAGE}=={runtime_version()}"
    options = ["--no-deps", "--no-binary", PACKAGE, "--disable-pip-version-check", "-d", str(folder)]
    command = [sys.executable, "-m", "pip", "download", wanted, *options]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    found = sorted(folder.glob("*.tar.gz"))
    if done.returncode != 0 or not found:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        why = (errors or lines or ["no reason given"])[-1].strip()
        raise ConverterError(
            f"cannot fetch the source of {wanted} for llama.cpp's converter: {why}; "
            f"or name a checkout of llama.cpp in {SETTING}"
        )
    return found[0]


def _unpack(sdist: Path, folder: Path) -> None:
    """Unpack the files in vendor/llama.cpp that the converter needs."""
    try:
        with tarfile.open(sdist) as tar:
            for member in tar:
                _top, _, path = member.name.partition("/vendor/llama.cpp/")
                if path.startswith(NEEDED) and member.isfile() and (content := tar.extractfile(member)):
                    target = folder / path
                    if not target.resolve().is_relative_to(folder.resolve()):
                        raise ConverterError(f"{sdist.name}: cannot be unpacked: {member.name} lies outside")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with content, target.open("wb") as file:
                        shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ConverterError(f"{sdist.name}: cannot be unpacked: {error}") from error
    if not (folder / SCRIPT).is_file():
        raise ConverterError(f"{sdist.name}: holds no {SCRIPT}; name a checkout of llama.cpp in {SETTING}")


def run(converter: Path, jobs: Sequence[Job], progress: Progress, expected: int = 0) -> None:
    """Run the jobs in turn, up to the first that fails. expected: approximate bytes that the last one writes.

    Raises SourceError with the converter's message, and RoomError if it was killed.
    """
    arguments = json.dumps([job.arguments() for job in jobs])
    command = [sys.executable, "-P", convert_child.__file__, str(converter / SCRIPT), arguments]
    env = {name: value for name, value in os.environ.items() if name != "NO_LOCAL_GGUF"}
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # nothing is written: the child exits when the pipe is closed
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=env | {"HF_HUB_OFFLINE": "1"},
            process_group=0,  # Ctrl-C reaches only this process
        ) as process,
    ):
        try:
            while _running(process):
                progress.note(_share(jobs[-1].outfile, expected))
        except BaseException:
            process.kill()
            raise
        if process.returncode != 0:
            stderr.seek(0)
            raise _failure(jobs, process.returncode, stderr.read().decode(errors="replace"))


def _running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _share(written: Path, expected: int) -> float:
    try:
        return min(1.0, written.stat().st_size / expected) if expected else 0.0
    except FileNotFoundError:
        return 0.0


def _failure(jobs: Sequence[Job], code: int, stderr: str) -> CompileError:
    name = jobs[-1].name
    if code == -signal.SIGKILL:
        return RoomError(f"{name}: the converter was killed by the system: too little memory?")
    if UNKNOWN_TOKENIZER in stderr:
        return UnknownError(
            f"{name}: its tokenizer splits text in a way that llama.cpp {runtime_version()} does not know"
        )
    if unknown := UNKNOWN_ARCHITECTURE.search(stderr):
        return UnknownError(
            f"{name}: its architecture {unknown[1]} is not known to llama.cpp {runtime_version()}"
        )
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    reasons = [match for line in lines if (match := ERROR_LINE.fullmatch(line))]
    if not reasons:
        return SourceError(f"{name}: cannot be converted: {lines[-1] if lines else f'exit code {code}'}")
    kind, why = reasons[-1].groups()
    plain = why if kind is None or kind in ("ValueError", "FileNotFoundError") else f"{kind}: {why}"
    return SourceError(f"{name}: cannot be converted: {plain.replace(str(jobs[-1].checkpoint) + os.sep, '')}")
