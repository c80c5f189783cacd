"""Which build of llama.cpp runs on this machine.

One that was made for other instructions, or by a compiler with a fault, ends the process with a signal, and
perhaps in its first large call only. So a child process decodes before a model is served. If it dies, another
tries without buffers of extra kinds (weights repacked for AMX and other instructions) and without medusaq's
kernels, the next with a portable build. What works is kept for the library and the machine, and used by every
process here.

Nothing in this module loads llama.cpp.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from common.atomic_write import atomic_write
from common.processor import processor, usable_cores

LLAMA_CPP = "llama-cpp-python"
LIBRARY_VARIABLE = "LLAMA_CPP_LIB_PATH"  # the folder of the libraries, as llama_cpp reads it
USE_VARIABLE = "MEDUSAQ_LLAMA_CPP"  # how a process that tries, or has tried, uses it
KERNELS_VARIABLE = "MEDUSAQ_KERNELS"  # which of medusaq's compute: a variant, or off; unset is the fastest
TRIAL = "engine.tools.decode_trial"
TRIAL_S = 900.0  # for a large model from a slow disk
BUILD_S = 60.0
# Fields of an EngineConfig that decide which kernels run.
DECIDING = ("model", "weights", "slots", "kv_type", "gpu_layers", "batch_invariant", "threads")
REGISTER = "models.json"  # of models by name
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
                "without buffers for AMX and other instructions, and without medusaq's kernels",
                "prompts and batches are slower",
            )
        else:
            what, cost = "from the portable build", "it is slower than one made for this processor"
        return f"llama.cpp as built ends with {self.died_of} here, and is used {what}: {cost}"


def cache_folder() -> Path:
    """The folder of cached files: $XDG_CACHE_HOME/medusaq, usually ~/.cache/medusaq."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "medusaq"


def data_folder() -> Path:
    """The folder of what is kept: $XDG_DATA_HOME/medusaq, usually ~/.local/share/medusaq."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "medusaq"


def portable_folder() -> Path:
    """Where `make portable` puts libraries that run on every processor of this kind."""
    version = metadata.version(LLAMA_CPP) if importlib.util.find_spec("llama_cpp") else ""
    return cache_folder() / f"portable-{version}"


def library_folder() -> Path:
    """Where llama_cpp looks for its libraries."""
    return Path(os.environ.get(LIBRARY_VARIABLE) or _installed())


def verdict() -> Verdict:
    """What is known of this library on this machine; AS_BUILT if nothing is."""
    if use := os.environ.get(USE_VARIABLE):
        return replace(_kept(), use=Use(use))
    return _kept()


def _kept() -> Verdict:
    try:
        kept = json.loads(_kept_path().read_text(encoding="utf-8"))
        found = Verdict(Use(kept["use"]), kept["died_of"], tuple(kept["decoded"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Verdict()
    return found if found.use is not Use.PORTABLE or portable_folder().is_dir() else Verdict()


def variables() -> dict[str, str]:
    """To be set before llama_cpp is first imported, for the portable build where that is the verdict."""
    use = verdict().use
    return {LIBRARY_VARIABLE: str(portable_folder()), USE_VARIABLE: use} if use is Use.PORTABLE else {}


def try_build(config: Mapping[str, Any]) -> Verdict:
    """Decode with this model in a child process, unless it is known to work. Keeps and returns the verdict.

    config: has fields of an EngineConfig, the model also by a registered name. A model that cannot be loaded
    is no fault of the build: whoever serves it says so. Raises BuildDies.
    """
    known, config = verdict(), _deciding(config)
    if has_decoded(config):
        return known
    ways = list(Use)[list(Use).index(known.use) :]
    if not portable_folder().is_dir():
        ways = [use for use in ways if use is not Use.PORTABLE]
    died_of, first = "", known.died_of
    for use in ways:
        died_of, decodes = _trial(config, use)
        if decodes:
            return _keep(Verdict(use, first, (*known.decoded, _key(config))))
        if not died_of:
            return Verdict(use, first, known.decoded)
        first = first or died_of
    what = f"llama.cpp ends with {first} on this processor, {processor()}; it was built for {_build()}"
    raise BuildDies(what)


def has_decoded(config: Mapping[str, Any]) -> bool:
    """Whether a child has decoded with this model."""
    return _key(_deciding(config)) in verdict().decoded


def check_decodes(config: Mapping[str, Any]) -> None:
    """Raises BuildDies if decoding with this model dies in the way in which this process uses llama.cpp."""
    if has_decoded(config):
        return
    died_of, decodes = _trial(_deciding(config), verdict().use)
    if died_of:
        raise BuildDies(f"llama.cpp ends with {died_of} on this processor, {processor()}")
    if decodes:
        _keep(replace(verdict(), decoded=(*verdict().decoded, _key(_deciding(config)))))


def _deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in DECIDING if name in config}


def rebuild() -> str:
    """The command that compiles llama.cpp anew, in the version that medusaq requires."""
    [required] = {
        line.partition(";")[0].strip()
        for line in metadata.requires("medusaq") or ()
        if line.startswith(LLAMA_CPP)
    }
    included = shlex.quote(f"-DCMAKE_PROJECT_INCLUDE={CMAKE_INCLUDED}")
    env = f"CMAKE_ARGS={shlex.quote(f'-DLLAVA_BUILD=OFF {included}')}"
    python = shlex.quote(sys.executable)
    anew = f"--no-deps --no-binary {LLAMA_CPP} '{required}'"
    if importlib.util.find_spec("pip") is None:  # as uv makes environments
        install = f"uv pip install --python {python} --reinstall --no-cache"
    else:
        install = f"{python} -m pip install --force-reinstall --no-cache-dir"
    return f"{env} {install} {anew}"


def _trial(config: Mapping[str, Any], use: Use) -> tuple[str, bool]:
    """The name of the signal that ended a child that decoded in this way, empty if none did; whether it did
    decode.
    """
    env = {**os.environ, USE_VARIABLE: use, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-m", TRIAL, json.dumps(config)]
    with suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_S
        )
        if ended.returncode < 0 and -ended.returncode not in FROM_OUTSIDE:
            return signal_name(-ended.returncode), False
        return "", ended.returncode == 0
    return "", False


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
    model = config.get("model")
    file: tuple[object, ...] = ("the packaged one",)
    if model is not None:
        named = data_folder() / REGISTER  # where another file may get the name
        file = (str(Path(model).resolve()), *_state(Path(model)), *_state(named))
    return repr((*file, sorted(config.items())))


def _state(path: Path) -> tuple[int, ...]:
    """Empty for a file that is not there."""
    with suppress(OSError):
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns
    return ()


def _keep(found: Verdict) -> Verdict:
    """Beside what other processes have found meanwhile; returns both."""
    path = _kept_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            kept = _kept()
            use = max(found.use, kept.use, key=list(Use).index)
            decoded = tuple(dict.fromkeys((*kept.decoded, *found.decoded)))[-MOST_KEPT:]
            found = Verdict(use, found.died_of or kept.died_of, decoded)
            atomic_write(path, json.dumps({"library": _library(), **asdict(found)}), durable=False)
    except OSError:  # it is tried again
        pass
    return found


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _kept_path() -> Path:
    here = f"{_library()}, {processor()}, {usable_cores()} cores, {platform.release()}"
    return cache_folder() / f"build-{sha256(here.encode()).hexdigest()[:24]}.json"


def _installed() -> Path:
    spec = importlib.util.find_spec("llama_cpp")
    return Path(spec.origin).parent / "lib" if spec and spec.origin else Path()


def _library() -> str:
    """The versions of the installed libraries by name, size and time of change."""
    folder = library_folder()
    if folder == portable_folder():  # which this process uses in the place of
        folder = _installed()
    files = sorted(path for path in folder.glob("lib*") if path.is_file())
    return repr([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files])
