"""Many of these tests quantise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.forking.children import ENGINE, forking


@pytest.fixture(scope="module")
def forked_engines() -> Iterator[None]:
    """Where starting the process that quantises is not the subject."""
    with forking(ENGINE):
        yield
