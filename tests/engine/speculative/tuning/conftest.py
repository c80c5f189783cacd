"""A packed model, engines that are started on it, and a cache folder of each test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import EngineConfig, load
from engine.service import EngineService
from engine.weights.quantise import requantise
from tests.engine.helpers.tiny import write_tiny_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "medusaq"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model in Q8_0, which may be unpacked."""
    folder = tmp_path_factory.mktemp("packed")
    write_tiny_gguf(folder / "plain.gguf")
    requantise(str(folder / "plain.gguf"), str(folder / "packed.gguf"), "q8_0")
    return str(folder / "packed.gguf")


@pytest.fixture
def start() -> Iterator[Callable[[EngineConfig], EngineService]]:
    services = []

    def start(config: EngineConfig) -> EngineService:
        services.append(load(config))
        return services[-1]

    yield start
    for service in services:
        service.close()
