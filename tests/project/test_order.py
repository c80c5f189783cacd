"""The order in which the suite runs its files: those that take longest come first."""

from __future__ import annotations

import pytest

from tests.conftest import LONGEST_FIRST, PLACES
from tests.support.workers import ROOT


@pytest.mark.parametrize("name", LONGEST_FIRST)
def test_a_file_that_comes_first_exists(name: str) -> None:
    """A path that leads nowhere has no place, and its file comes last."""
    assert ROOT / "tests" / name in PLACES
    assert (ROOT / "tests" / name).is_file()


def test_no_file_has_two_places() -> None:
    assert len(PLACES) == len(LONGEST_FIRST)
