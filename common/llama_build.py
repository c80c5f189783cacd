"""Which build of llama.cpp runs on this machine.

One that was made for other instructions, or by a compiler with a fault, ends the process with a signal, and
perhaps in its first large call only. So a child process decodes before a model is served. If it dies, another
tries without buffers of extra kinds (weights repacked for AMX and other instructions), the next with a
portable build. What works is kept for the library and the machine, and used by every process here.

Nothing in this module loads llama.cpp.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from common.atomic_write import atomic_write
from common.processor import processor, usable_cores

LLAMA_CPP = "llama-cpp-python"
LIBRARY_VARIABLE = "LLAMA_CPP_LIB_PATH"  # the folder of the libraries, as llama_cpp reads it
TRIED_VARIABLE = "MEDUSAQ_TRIED_BUILD"  # in the child: what it tries
TRIAL = "engine.tools.decode_trial"
TRIAL_S = 900.0  # for a large model from a slow disk
BUILD_S = 60.0
# Fields of an EngineConfig that decide which kernels run.
DECIDING = ("model", "weights", "slots", "kv_type", "gpu_layers", "batch_invariant", "threads")
MOST_KEPT = 50  # models that are known to decode
ASK_BUILD = "from engine.llama.model import build; print(build())"
CMAKE_INCLUDED = Path(__file__).parents[1] / "engine" / "llama" / "llama_cpp.cmake"
# Sent by others, so no fault of the build.
FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class Use(StrEnum):
    """How llama.cpp is used."""

    AS_BUILT = "as_built"
    PLAIN_BUFFERS = "plain_buffers"
    PORTABLE = "portable"


class BuildDies(Exception):
    """No way of using llama.cpp survives a decode call here; rebuild() is the way out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """died_of: the signal that ended the trial of the build as it is, empty if none did. decoded: models that
    were tried, the last MOST_KEPT.
    """

    use: Use = Use.AS_BUILT
    died_of: str = ""
    decoded: tuple[str, ...] = ()

    @property
    def fault(self) -> str | None:
        """One line on what does not work, and what that costs."""
        if self.use is Use.AS_BUILT:
            return None
        if self.use is Use.PLAIN_BUFFERS:
            what, cost = (
                "without its buffers for AMX and other instructions",
                "prompts and batches are slower",
            )
        else:
            what, cost = "from the portable build", "it is slower than one made for this processor"
        return f"llama.cpp as built ends with {self.died_of} here, and is used {what}: {cost}"


def cache_folder() -> Path:
    """The folder of cached files: $XDG_CACHE_HOME/medusaq, usually ~/.cache/medusaq."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "medusaq"


def portable_folder() -> Path:
    """Where `make portable` puts libraries that run on every processor of this kind."""
    return cache_folder() / "portable"


def verdict() -> Verdict:
    """What is known of this library on this machine; AS_BUILT if nothing is."""
    if tried := os.environ.get(TRIED_VARIABLE):
        return Verdict(Use(tried))
    try:
        kept = json.loads(_kept_path().read_text(encoding="utf-8"))
        return Verdict(Use(kept["use"]), kept["died_of"], tuple(kept["decoded"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Verdict()


def variables() -> dict[str, str]:
    """To be set before llama_cpp is first imported, for the portable build where that is the verdict."""
    return {LIBRARY_VARIABLE: str(portable_folder())} if verdict().use is Use.PORTABLE else {}


def try_build(config: Mapping[str, Any]) -> Verdict:
    """Decode with this model in a child process, unless it is known to work. Keeps and returns the verdict.

    config: has fields of an EngineConfig, the model also by a registered name. A model that cannot be loaded
    is no fault of the build: whoever serves it says so. Raises BuildDies.
    """
    config = {name: config[name] for name in DECIDING if name in config}
    known, asked = verdict(), _key(config)
    if asked in known.decoded:
        return known
    ways = list(Use)[list(Use).index(known.use) :]
    if not portable_folder().is_dir():
        ways = [use for use in ways if use is not Use.PORTABLE]
    died_of, first = "", known.died_of
    for use in ways:
        died_of = _trial(config, use)
        if not died_of:
            found = Verdict(use, first, (*known.decoded, asked)[-MOST_KEPT:])
            _keep(found)
            return found
        first = first or died_of
    what = f"llama.cpp ends with {first} on this processor, {processor()}; it was built for {_build()}"
    raise BuildDies(what)


def rebuild() -> str:
    """The command that compiles llama.cpp anew, in the version that medusaq requires."""
    [required] = {
        line.partition(";")[0].strip()
        for line in metadata.requires("medusaq") or ()
        if line.startswith(LLAMA_CPP)
    }
    env = f"CMAKE_ARGS='-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_INCLUDE={CMAKE_INCLUDED}'"
    anew = f"--no-deps --no-binary {LLAMA_CPP} '{required}'"
    if importlib.util.find_spec("pip") is None:  # as uv makes environments
        install = f"uv pip install --python {sys.executable} --reinstall --no-cache"
    else:
        install = f"{sys.executable} -m pip install --force-reinstall --no-cache-dir"
    return f"{env} {install} {anew}"


def _trial(config: Mapping[str, Any], use: Use) -> str:
    """The name of the signal that ended a child that decoded in this way; empty if none did."""
    env = {**os.environ, TRIED_VARIABLE: use, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-m", TRIAL, json.dumps(config)]
    with suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_S
        )
        if ended.returncode < 0 and -ended.returncode not in FROM_OUTSIDE:
            return signal_name(-ended.returncode)
    return ""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _build() -> str:
    """The instructions that it was compiled for, from a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with suppress(subprocess.SubprocessError):
        asked = subprocess.run(
            [sys.executable, "-P", "-c", ASK_BUILD], env=env, capture_output=True, text=True, timeout=BUILD_S
        )
        if asked.returncode == 0:
            return ", ".join(re.findall(r"(\w+) = 1", asked.stdout))
    return "what it does not say, as it cannot be loaded"


def _key(config: Mapping[str, Any]) -> str:
    """What decides which kernels run."""
    path = str(config.get("model") or "")
    try:
        stat = Path(path).stat()
        file: tuple[object, ...] = (str(Path(path).resolve()), stat.st_size, stat.st_mtime_ns)
    except OSError:  # the packaged model, or a registered name
        file = (path,)
    return repr((*file, sorted(config.items())))


def _keep(found: Verdict) -> None:
    path = _kept_path()
    with suppress(OSError):  # it is tried again
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps({"library": _library(), **asdict(found)}), durable=False)


def _kept_path() -> Path:
    here = f"{_library()}, {processor()}, {usable_cores()} cores, {platform.release()}"
    return cache_folder() / f"build-{sha256(here.encode()).hexdigest()[:24]}.json"


def _library() -> str:
    """The versions of the installed libraries by name, size and time of change."""
    spec = importlib.util.find_spec("llama_cpp")
    inside = Path(spec.origin).parent / "lib" if spec and spec.origin else Path()
    folder = Path(os.environ.get(LIBRARY_VARIABLE) or inside)
    files = sorted(path for path in folder.glob("lib*") if path.is_file())
    return repr([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files])
