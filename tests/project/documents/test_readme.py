"""The README is short, and the commands that it and CONTRIBUTING name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MOST_LINES = 150


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_commands_are_the_makefiles(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(
        re.findall(r"(?:^\$ |`)make ([\w-]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {"demo", "test"} <= targets
    for target in targets:
        assert f"\n{target}:" in makefile, target
