"""The commands of the Makefile: what each needs, and that what it runs is there."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

MAKEFILE = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")


def test_demo_needs_serving_and_every_other_command_all() -> None:
    needs = dict(re.findall(r"^([\w-]+): (\$\(\w+\)|install)(?: |$)", MAKEFILE, re.MULTILINE))
    assert needs.pop("demo") == "$(SERVING)"
    assert needs.pop("install") == "$(ALL)"
    assert " ".join(sorted(needs)) == (
        "bench chaos check clients containers gpu-check large-model machines pictures portable "
        "release test test-all test-fast"
    )
    assert set(needs.values()) == {"install"}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"python -m ((?:docs|tests)\S*)", MAKEFILE))))
def test_what_a_command_runs_can_be_imported(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    importlib.import_module(name if spec.submodule_search_locations is None else f"{name}.__main__")
