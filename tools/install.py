"""Runs pip in .venv with a progress display: `install.py serving`, `all` or `portable`, from the Makefile.

serving installs what the system needs to run; all adds training, compiling, charts and the tests. The
versions are those of requirements.lock. llama.cpp is compiled first, into a wheel that is kept for later
environments. Uses only the standard library, since nothing else is installed yet.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
LOCK = "requirements.lock"
EXTRAS = ("worker", "medusa", "local")
NO_IMAGES = "-DLLAVA_BUILD=OFF"  # skips libmtmd, which nothing here uses
WHOLE = "-DMEDUSAQ_WHOLE=ON"  # file by file, with the helpers of llama.cpp's own programs
INCLUDED = ROOT / "engine" / "llama" / "llama_cpp.cmake"
LLAMA_CPP = "llama-cpp-python"
PREBUILT = "abetlen.github.io/llama-cpp-python/whl"  # an index of compiled wheels

POLL_S = 0.25
PLAIN_EVERY_S = 5.0
MAX_ERROR_LINES = 12
MAX_ERROR_WIDTH = 240

STAMPED = re.compile(r"^\d{4}-\d\d-\d\dT[\d:,]+ ")  # each line of pip's log
FETCHED = re.compile(
    r"^ *(?:Downloading|Using cached|Processing) (?:\S*/)?([\w.-]+?)-(\d\S*)(?: \((\S+ \wB)\))?"
)
SATISFIED = re.compile(r"^Requirement already satisfied: ([\w.-]+)")
BUILDS = re.compile(
    r"^ *Building (?:wheel|editable) for (\S+) \(.*\): (started|finished with status '(?:done|error)')"
)
STEP = re.compile(r"^ *\[(\d+)/(\d+)\] ")  # of ninja
PERCENT = re.compile(r"^ *\[ *(\d+)%\] ")  # of make
INSTALLING = re.compile(r"^Installing collected packages: (.*)")
ERROR_LINE = re.compile(
    r"^(?:ERROR|FAILED|ninja|CMake Error.*): |^(?:WARNING: Retrying|CMake Error)|\b(?:fatal )?error: "
    r"|No space left|Killed|Permission denied|No module named"
)


def arguments(what: str) -> list[str]:
    """The arguments of `pip install`."""
    if what == "serving":
        return ["-c", LOCK, "-e", f".[{','.join(EXTRAS)}]"]
    return ["-r", LOCK, "-e", "."]


def environment(env: Mapping[str, str], cmake_args: str) -> dict[str, str]:
    """Add our CMAKE_ARGS before the user's: cmake uses the last value of an option."""
    return {**env, "CMAKE_ARGS": f"{cmake_args} {env.get('CMAKE_ARGS', '')}".strip()}


def expected(what: str, root: Path = ROOT) -> set[str]:
    """The locked packages that will be installed, from the dependency comments of the lock file."""
    needed_by: dict[str, set[str]] = {}
    for line in (root / LOCK).read_text(encoding="utf-8").splitlines():
        if "==" in line:
            name, _, rest = line.partition("==")
            comment = rest.partition("# via ")[2]
            needed_by[_name(name)] = {_name(by.split()[0]) for by in comment.split(",") if by.strip()}
    if what != "serving":
        return set(needed_by)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"]]
    for extra in EXTRAS:
        requirements += project["optional-dependencies"][extra]
    found: set[str] = set()
    more = {_name(re.split(r"[^\w.-]", each)[0]) for each in requirements}
    while more:
        found |= more
        more = {name for name, by in needed_by.items() if by & found} - found
    return found


def _name(name: str) -> str:
    """The normalized name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


@dataclass
class Progress:
    """What pip is doing, read from its log line by line."""

    expected: set[str]
    clock: Callable[[], float] = time.monotonic
    build_s: float = 0.0  # spent on compiling llama.cpp
    build_failed: bool = False  # of llama.cpp
    _fetched: set[str] = field(default_factory=set)
    _fetching: str = ""
    _building: str = ""
    _since: float = 0.0
    _step: str = ""
    _installing: int = 0

    def read(self, line: str) -> None:
        line = STAMPED.sub("", line)
        if found := FETCHED.match(line):
            self._fetch(found[1], found[2].endswith(".metadata"), found[3])
        elif found := SATISFIED.match(line):
            self._fetch(found[1], False, None)
        elif found := BUILDS.match(line):
            self._build(_name(found[1]), found[2])
        elif self._building and (found := STEP.match(line)):
            self._step = f": {found[1]} of {found[2]} files"
        elif self._building and (found := PERCENT.match(line)):
            self._step = f": {found[1]}%"
        elif found := INSTALLING.match(line):
            self._installing = len(found[1].split(", "))

    def text(self) -> str:
        if self._building:
            what = "compiling llama.cpp" if self._building == LLAMA_CPP else f"building {self._building}"
            return f"{what}{self._step} ({duration(self.clock() - self._since)})"
        if self._installing:
            return f"installing {self._installing} packages"
        return f"fetching {len(self._fetched)} of {len(self.expected)} packages{self._fetching}"

    def _fetch(self, name: str, metadata_alone: bool, size: str | None) -> None:
        self._fetching = f": {name}" + (f" ({size})" if size else "")
        if not metadata_alone and _name(name) in self.expected:  # build dependencies are not counted
            self._fetched.add(_name(name))

    def _build(self, name: str, status: str) -> None:
        if status == "started":
            self._building, self._since, self._step = name, self.clock(), ""
            return
        if self._building == LLAMA_CPP:
            self.build_s += self.clock() - self._since
            self.build_failed = "error" in status
        self._building = ""


class Display:
    """Shows progress: one updated line on a terminal, otherwise a line every few seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._live = stream.isatty()
        self._next = clock() + PLAIN_EVERY_S
        self._last = ""

    def update(self, text: str) -> None:
        if text == self._last:
            return
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{text[:width]}")
        elif self._clock() >= self._next:
            self._next = self._clock() + PLAIN_EVERY_S
            self._stream.write(f"{text}\n")
        else:
            return
        self._last = text
        self._stream.flush()

    def end(self) -> None:
        if self._live and self._last:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def run_pip(
    command: Sequence[str], env: Mapping[str, str], log: Path, progress: Progress, display: Display
) -> tuple[int, str]:
    """Run pip, or a script that runs it, logging all of its messages: its exit code, and its output."""
    log.unlink(missing_ok=True)  # pip appends
    with (
        log.open("a", encoding="utf-8") as errors,
        log.open(encoding="utf-8", errors="replace") as output,
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
    ):
        process = subprocess.Popen(
            command,
            env={**env, "PIP_LOG": str(log)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=errors,  # messages from before pip opens its log
            start_new_session=True,  # a script's pip, and its compilers, end with it
        )
        partial = ""
        try:
            while True:
                ended = process.poll() is not None  # checked before reading, so that no output is missed
                *lines, partial = (partial + output.read()).split("\n")
                for line in lines:
                    progress.read(line)
                display.update(progress.text())
                if ended:
                    said.seek(0)
                    return process.wait(), said.read()
                time.sleep(POLL_S)
        finally:
            display.end()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()


def cache() -> Path:
    """As common/llama_build.py has it."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "medusaq"


def compile_llama_cpp(required: str, log: Path, progress: Progress, display: Display) -> tuple[int, str]:
    """The exit code, and the compiled wheel's path. If the reduced build fails, the full one is tried."""
    script = ["sh", str(ROOT / "tools" / "wheel.sh"), required, str(cache() / "wheels")]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    for switches in (NO_IMAGES, f"{NO_IMAGES} {WHOLE}"):
        progress.build_failed = False
        env = environment({**os.environ, "PATH": path}, switches)
        code, wheel = run_pip([*script, str(INCLUDED)], env, log, progress, display)
        if not progress.build_failed:
            break
    return code, wheel.strip()


def required() -> str:
    """The locked version of llama-cpp-python; empty if there is none."""
    lock = (ROOT / LOCK).read_text(encoding="utf-8")
    found = re.search(rf"^{LLAMA_CPP}==\S+", lock, re.MULTILINE)
    return found[0] if found else ""


def install(what: str, venv: Path, log: Path, progress: Progress, display: Display) -> int:
    """Compile llama.cpp, unless it comes compiled, and install everything. Returns pip's exit code."""
    pip = [sys.executable, "-m", "pip", "install"]
    if required() and PREBUILT not in os.environ.get("PIP_EXTRA_INDEX_URL", ""):
        code, wheel = compile_llama_cpp(required(), log, progress, display)
        there = venv / ".llama-cpp-wheel"  # which one is installed
        if not code and (not there.is_file() or there.read_text(encoding="utf-8") != wheel):
            code, _ = run_pip(
                [*pip, "--no-deps", "--force-reinstall", wheel], os.environ, log, progress, display
            )
            if not code:
                there.write_text(wheel, encoding="utf-8")
        if code:
            return code
    code, _ = run_pip([*pip, *arguments(what)], os.environ, log, progress, display)
    if not code:  # that none can be made is no error, and what it says is for the log
        with log.open("a", encoding="utf-8") as said:
            subprocess.run([sys.executable, "-m", "engine.kernels"], cwd=ROOT, stdout=said, stderr=said)
    return code


def make_portable(log: Path, progress: Progress, display: Display) -> int:
    """Compile llama.cpp for every processor of this kind, into the folder where workers look for it."""
    os.environ["CMAKE_ARGS"] = f"{os.environ.get('CMAKE_ARGS', '')} -DGGML_NATIVE=off"
    code, wheel = compile_llama_cpp(required(), log, progress, display)
    if not code:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith("llama_cpp/lib/lib"):
                    target = cache() / f"portable-{required().partition('==')[2]}" / Path(name).name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.unlink(missing_ok=True)  # a process may have it mapped
                    target.write_bytes(archive.read(name))
    return code


def error_lines(log: Path) -> list[str]:
    """The last distinct lines that name an error, or the last lines if none does."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [STAMPED.sub("", line).strip()[:MAX_ERROR_WIDTH] for line in text.splitlines()]
    found = dict.fromkeys(line for line in lines if ERROR_LINE.search(line))
    return [*(found or dict.fromkeys(filter(None, lines)))][-MAX_ERROR_LINES:]


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def main() -> int:
    [what] = sys.argv[1:]
    venv = Path(sys.prefix)
    if sys.prefix == sys.base_prefix:
        print("error: run this with the Python of .venv, as the Makefile does", file=sys.stderr)
        return 2
    log = venv / "install.log"
    progress = Progress(expected(what))
    started = time.monotonic()
    os.environ.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if what == "portable":
            code = make_portable(log, progress, Display(sys.stderr))
        else:
            code = install(what, venv, log, progress, Display(sys.stderr))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    took = time.monotonic() - started
    if code:
        print(f"error: pip failed after {duration(took)} while {progress.text()}:", file=sys.stderr)
        print(*(f"  {line}" for line in error_lines(log)), f"full log: {log}", sep="\n", file=sys.stderr)
        return code
    rows = [("installing", took - progress.build_s)]
    if progress.build_s:
        rows.append(("compiling", progress.build_s))
    table = "".join(f"{name:<18}{duration(seconds)}\n" for name, seconds in rows)
    (venv / "install-times").write_text(table, encoding="utf-8")
    print(table, end="", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
