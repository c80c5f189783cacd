"""Models for the engine's tests: the default one, and a tiny F32 one where exactness is the subject."""

from __future__ import annotations

import pytest

from engine.model import Model
from tests.engine.answers import Writer
from tests.engine.tiny import write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tiny F32 llama GGUF with random weights."""
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def writer(tiny_gguf: str) -> Writer:
    """Writes with the tokens of the tiny model, which has one for each byte."""
    return Writer(Model(tiny_gguf))
