"""A tiny model and what it wrote: made once, read by all tests of training."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli
from tests.engine.helpers.tiny import write_tiny_gguf
from training.collection.collect import CollectOptions, collect
from training.prompts.prompts import compose, write_prompts


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tiny F32 llama GGUF with random weights."""
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 40 composed prompts."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    write_prompts(path, compose(40))
    return path


@pytest.fixture
def quiet() -> Console:
    """A console that keeps what it is told: see its file."""
    return Console(file=StringIO())


def said(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def options(tiny_gguf: str, prompts: Path, out: Path, **changes: object) -> CollectOptions:
    settings: dict[str, object] = {
        "prompts": (prompts,),
        "out": out,
        "model": tiny_gguf,
        "tokens": 600,
        "max_tokens": 24,
        "slots": 8,
        "kv_cells": 4096,
        "threads": 1,
    }
    return CollectOptions(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def states(tiny_gguf: str, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of some thousand tokens of the tiny model."""
    out = tmp_path_factory.mktemp("collected") / "states"
    collect(options(tiny_gguf, prompts, out, tokens=4000), Console(file=StringIO()))
    return out


@pytest.fixture
def in_process(tmp_path: Path) -> InProcessCli:
    return InProcessCli(Cli(tmp_path))
