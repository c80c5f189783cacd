"""docs/reference/settings.md is what the settings say of themselves."""

from __future__ import annotations

import re

import pytest

from tasks.base.settings import Settings
from tests.project.settings_page import GROUPS, PAGE, page


def test_the_page_is_up_to_date() -> None:
    mend = "python -m tests.project.settings_page --write docs/reference/settings.md"
    assert PAGE.read_text(encoding="utf-8") == page(), mend


def test_the_groups_are_of_the_settings() -> None:
    assert GROUPS.keys() <= Settings.model_fields.keys()
    assert next(iter(Settings.model_fields)) in GROUPS


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_says_what_it_does_and_its_unit(name: str) -> None:
    field = Settings.model_fields[name]
    said = field.description or ""
    assert re.match(r"[A-Z`\[]", said), "a sentence"
    assert said.endswith(".")
    for suffix, unit in (("_ms", "(ms)"), ("_s", "(s)"), ("_bytes", "ytes")):
        if name.endswith(suffix):
            assert unit in said, f"the unit is missing: {said}"


def test_there_are_few() -> None:
    assert len(Settings.model_fields) <= 41
