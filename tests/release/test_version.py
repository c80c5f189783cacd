"""The version and the topmost entry of the changelog say the same (CONTRIBUTING.md, "Release")."""

from __future__ import annotations

import re
from datetime import date

import pytest
from packaging.version import Version

from tests.release.contents import project
from tests.support.workers import ROOT

ENTRY = re.compile(r"^## \[([^\]]+)\](?: - (\S+))?$", re.MULTILINE)


def disagreement(changelog: str, version: str) -> str:
    """What is wrong between the two; empty if nothing is."""
    entries = ENTRY.findall(changelog)
    if not entries:
        return "the changelog has no entry"
    name, when = entries[0]
    given, released = Version(version), [Version(each) for each, _ in entries if each != "Unreleased"]
    if name == "Unreleased":
        if not given.is_devrelease:
            return f"the topmost entry is not released, and {version} is no development version"
        return f"{released[0]} is out already" if released and given <= released[0] else ""
    if given != Version(name):
        return f"the topmost entry is {name}, and the version is {version}"
    if sorted(released, reverse=True) != released:
        return "the entries are not in order"
    try:
        date.fromisoformat(when)
    except ValueError:
        return f"the entry of {name} has no date"
    return ""


def test_they_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert disagreement(changelog, project()["version"]) == ""


@pytest.mark.parametrize(
    ("entries", "version", "wrong"),
    [
        ("## [Unreleased]\n", "0.1.0.dev0", ""),
        ("## [Unreleased]\n## [0.1.0] - 2026-12-01\n", "0.2.0.dev0", ""),
        ("## [0.1.0] - 2026-12-01\n", "0.1.0", ""),
        ("## [Unreleased]\n", "0.1.0", "no development version"),
        ("## [Unreleased]\n## [0.2.0] - 2026-12-01\n", "0.2.0.dev0", "0.2.0 is out already"),
        ("## [0.1.0] - 2026-12-01\n", "0.1.0.dev0", "the topmost entry is 0.1.0"),
        ("## [0.1.0]\n", "0.1.0", "no date"),
        ("## [0.1.0] - soon\n", "0.1.0", "no date"),
        ("## [0.1.0] - 2026-12-01\n## [0.2.0] - 2026-12-02\n", "0.1.0", "not in order"),
        ("", "0.1.0", "no entry"),
    ],
)
def test_disagreements_are_found(entries: str, version: str, wrong: str) -> None:
    found = disagreement(entries, version)
    assert wrong in found
    assert bool(wrong) == bool(found)
