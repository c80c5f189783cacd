"""Further names of models: `medusaq up --alias`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.base.errors import BadInput
from cli.commands.service import _aliases
from cli.stack.local_stack import Stack, StackOptions


def test_an_alias_may_name_its_model() -> None:
    assert _aliases(["gpt-4o-mini", "gpt-4o=other"]) == {"gpt-4o-mini": "", "gpt-4o": "other"}
    with pytest.raises(BadInput, match="--alias needs a name"):
        _aliases(["=other"])


def test_services_are_told_of_aliases(tmp_path: Path) -> None:
    options = StackOptions(tmp_path, 0, None, aliases={"gpt-4o": "other"})
    stack = Stack(options, print)
    assert json.loads(stack._env["MEDUSAQ_MODEL_ALIASES"]) == {"gpt-4o": "other"}
    assert "MEDUSAQ_MODEL_ALIASES" not in os.environ
