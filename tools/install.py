"""Runs pip in .venv with a progress display: `install.py serving` or `install.py all`, from the Makefile.

serving installs what the system needs to run; all adds training, compiling, charts and the tests. The
versions are those of requirements.lock. Uses only the standard library, since nothing else is installed yet.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
LOCK = "requirements.lock"
EXTRAS = ("worker", "medusa", "local")
NO_IMAGES = "-DLLAVA_BUILD=OFF"  # skips libmtmd, which nothing here uses
REDUCED = shlex.join([NO_IMAGES, f"-DCMAKE_PROJECT_INCLUDE={ROOT / 'tools' / 'llama_cpp.cmake'}"])
LLAMA_CPP = "llama-cpp-python"

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


def install(
    pip: Sequence[str], env: Mapping[str, str], log: Path, progress: Progress, display: Display
) -> int:
    """Run pip, logging all of its messages, and return its exit code."""
    log.unlink(missing_ok=True)  # pip appends
    with log.open("a", encoding="utf-8") as errors, log.open(encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [*pip, "--log", str(log)],
            env=env,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,  # messages from before pip opens its log
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
                    return process.wait()
                time.sleep(POLL_S)
        finally:
            display.end()
            if process.poll() is None:
                process.terminate()
                process.wait()


def install_or_retry(pip: Sequence[str], what: str, log: Path, display: Display) -> tuple[int, Progress]:
    """The exit code of the last pip, and its progress. If the reduced build fails, the full one is tried."""
    for cmake_args in (REDUCED, NO_IMAGES):
        progress = Progress(expected(what))
        code = install([*pip, *arguments(what)], environment(os.environ, cmake_args), log, progress, display)
        if not progress.build_failed:
            break
    return code, progress


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
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    log = venv / "install.log"
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code, progress = install_or_retry(pip, what, log, Display(sys.stderr))
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
