"""Somebody who follows a page: installs what it says, and runs its commands in order as they are written."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import termios
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cli.helpers.running import COMMAND, TIMEOUT_S, Cli
from tests.support.workers import ROOT

# Python runs it at every start. It hides what was not installed, and nothing else.
HIDING = """
import sys
from importlib.machinery import PathFinder

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""


def commands(page: Path, renamed: Mapping[str, str]) -> list[list[str]]:
    """The words of each, in order. renamed: patterns of what has other names here."""
    text = "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    for pattern, name in renamed.items():
        text, found = re.subn(pattern, name, text)
        assert found, f"{page.name} has no {pattern} any more"
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


class Newcomer(Cli):
    """With the real engine, and of the packages here only those that were installed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.env |= {"MEDUSAQ_ENGINE_FACTORY": "engine:load", "XDG_DATA_HOME": str(folder / "data")}
        self.env |= {"PYTHONWARNINGS": "ignore", "TERM": "xterm"}

    def install(self, requirement: str) -> None:
        """As `pip install` would, where everything lies there already."""
        asked = Requirement(requirement)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert asked.name == project["name"]
        extras = project["optional-dependencies"]
        named = [one for extra in asked.extras for one in extras[extra]]
        chosen = {asked.name, *_closure([*project["dependencies"], *named])}
        hidden = {
            module
            for module, owners in metadata.packages_distributions().items()
            if not chosen & {canonicalize_name(owner) for owner in owners}
        }
        (self.folder / "python").mkdir()
        (self.folder / "python" / "sitecustomize.py").write_text(HIDING.format(hidden=hidden))
        self.env["PYTHONPATH"] = os.pathsep.join((str(self.folder / "python"), str(ROOT)))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command that must succeed."""
        if words[0] == "medusaq":
            ended = self(*words[1:])
        else:
            ended = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert ended.returncode == 0, ended.stderr
        return ended

    def on_terminal(self, *words: str) -> tuple[int, str]:
        """The exit code of a command, and what a terminal shows of it."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 100))
        command = [sys.executable, *COMMAND, *words[1:]]
        with subprocess.Popen(
            command, cwd=self.folder, env=self.env, stdout=theirs, stderr=theirs
        ) as process:
            os.close(theirs)
            shown = b"".join(iter(lambda: _read(ours), b""))
            os.close(ours)
        return process.returncode, shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # how Linux says that nobody writes there any more
        return b""


def _closure(requirements: Iterable[str]) -> set[str]:
    """The names of these packages, and of all that they need."""
    found: dict[str, set[str]] = {}  # with which of their extras
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        name = str(canonicalize_name(one.name))
        if name in found and one.extras <= found[name]:
            continue
        found.setdefault(name, set()).update(one.extras)
        try:
            texts = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:  # for another system
            continue
        waiting += [needed for text in texts if _applies(needed := Requirement(text), one.extras)]
    return set(found)


def _applies(needed: Requirement, extras: set[str]) -> bool:
    marker = needed.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
