"""The converter, fetched once and kept where the command keeps it too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.llama_build import cache_folder
from compiling.base.progress import Silence
from compiling.source import converter
from tests.engine.conftest import forked_engines as forked_engines
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.forking.children import TORCH, forking

KEPT = cache_folder()  # of the person who runs the tests: XDG_CACHE_HOME points elsewhere while they run
TEXT = "abc jade bad cafe, 12 34. " * 8


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


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a tiny model in F32 and a text."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny_gguf(folder / "tiny.f32.gguf")
    (folder / "text").write_text(TEXT)
    return folder
