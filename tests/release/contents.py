"""What belongs into the archives of a release, and what is wrong with one."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.project.test_layers import OURS
from tests.release.archives import Archives, sources
from tests.support.workers import ROOT

SHOWN = 5  # names in one problem
BESIDE = ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml")  # in the source archive


def project(root: Path = ROOT) -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    read: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return read


def packaged(root: Path = ROOT) -> set[str]:
    """All files of our packages: modules, scripts, templates, weights."""
    return {name for name in sources(root) if name.partition("/")[0] in OURS}


def problems(archives: Archives, root: Path = ROOT) -> list[str]:
    """Everything that is wrong, a line each."""
    return [*wheel_problems(archives.wheel, root), *source_problems(archives.source, root)]


def wheel_problems(path: Path, root: Path = ROOT) -> list[str]:
    with zipfile.ZipFile(path) as wheel:
        info = next(name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
        files = {name for name in wheel.namelist() if not name.startswith(f"{info}/")}
        metadata = message_from_string(wheel.read(f"{info}/METADATA").decode())
        scripts = wheel.read(f"{info}/entry_points.txt").decode()
        licences = [name for name in wheel.namelist() if name.startswith(f"{info}/licenses/")]
    found = _differences("the wheel", files, packaged(root))
    found += _metadata_problems(metadata, project(root))
    for name, place in project(root)["scripts"].items():
        if f"{name} = {place}" not in scripts:
            found.append(f"the wheel has no command {name}")
    if f"{info}/licenses/LICENSE" not in licences:
        found.append("the wheel has no LICENSE")
    return found


def source_problems(path: Path, root: Path = ROOT) -> list[str]:
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    made = {name for name in files if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    made.add("MANIFEST.in")
    return _differences("the source archive", files - made, packaged(root) | {*BESIDE})


def _differences(what: str, files: set[str], wanted: set[str]) -> list[str]:
    found = [f"{what} lacks {_names(wanted - files)}"] if wanted - files else []
    return found + ([f"{what} has, and should not, {_names(files - wanted)}"] if files - wanted else [])


def _names(names: Iterable[str]) -> str:
    first, rest = sorted(names)[:SHOWN], len([*names]) - SHOWN
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")


def _metadata_problems(metadata: Message, wanted: dict[str, Any]) -> list[str]:
    expected = {
        "Name": wanted["name"],
        "Version": wanted["version"],
        "License-Expression": wanted["license"],
        "License-File": "LICENSE",
        "Requires-Python": wanted["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    given = {name: metadata[name] for name in expected}
    found = [
        f"{name} is {given[name]}, not {value}" for name, value in expected.items() if given[name] != value
    ]
    extras = set(metadata.get_all("Provides-Extra") or [])
    if extras != set(wanted["optional-dependencies"]):
        found.append(f"the extras are {', '.join(sorted(extras))}")
    for line in metadata.get_all("Requires-Dist") or []:
        if Requirement(line).url is not None:
            found.append(f"{line}: an index takes no URLs")
    return found


def needed_by(extra: str, root: Path = ROOT) -> set[str]:
    """The names of the packages that an extra asks for."""
    lines = project(root)["optional-dependencies"].get(extra, [])
    return {canonicalize_name(Requirement(line).name) for line in lines}
