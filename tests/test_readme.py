"""What the README names exists."""

from __future__ import annotations

import re
from pathlib import Path

from tasks.setting_names import ENV_PREFIX
from tasks.settings import Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_setting_that_is_named_is_one() -> None:
    named = set(re.findall(rf"{ENV_PREFIX}([A-Z_]+)", README))
    assert named <= {name.upper() for name in Settings.model_fields}


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_commands_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make (\w+) ", README)):
        assert f"\n{target}:" in makefile
