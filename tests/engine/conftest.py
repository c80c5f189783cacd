"""Models for the engine's tests: the default one, and a tiny F32 one where exactness is the subject."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from engine.llama.model import Model
from engine.speculative import controller
from tests.engine.helpers.answers import Writer
from tests.engine.helpers.policy import Clock
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.forking.children import ENGINE, forking


@pytest.fixture(scope="module", autouse=True)
def own_cores() -> Iterator[None]:
    """Of a process that tests beside others: engines on the same cores wait for each other's threads."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[int(worker.removeprefix("gw")) % len(cores) :: count])
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tiny F32 llama GGUF with random weights."""
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def writer(tiny_gguf: str) -> Writer:
    """Writes with the tokens of the tiny model, which has one for each byte."""
    return Writer(Model(tiny_gguf))


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """While drafting: on a busy machine it is interrupted, and then other drafts pay than are expected."""
    monkeypatch.setattr(controller, "time", SimpleNamespace(perf_counter=lambda: 0.0))


@pytest.fixture(scope="module")
def forked_engines() -> Iterator[None]:
    """Where starting what measures and quantises is not the subject: forks instead of its processes."""
    with forking(ENGINE):
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """While drafting, time passes as sources of tests.engine.helpers.policy say that they cost."""
    monkeypatch.setattr("engine.speculative.controller.time", Clock)
