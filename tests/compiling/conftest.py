"""The converter, fetched once and kept where the command keeps it too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compiling.base.progress import Silence
from compiling.source import converter
from engine.host.measurement_cache import cache_folder
from tests.engine.conftest import forked_engines as forked_engines
from tests.support.forking.children import TORCH, forking

KEPT = cache_folder()  # of the person who runs the tests: XDG_CACHE_HOME points elsewhere while they run


@pytest.fixture(scope="session")
def converter_folder() -> Iterator[Path]:
    """llama.cpp's converter, for child processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(KEPT.parent))
        found = converter.find(Silence())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(converter.SETTING, str(found))
        yield found


@pytest.fixture(scope="module")
def forked_converters() -> Iterator[None]:
    """Where several are run, and starting one is not the subject."""
    with forking(TORCH):
        yield
