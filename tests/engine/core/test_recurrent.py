"""A recurrent model: its state cannot be rolled back, so it runs without shared prefixes and drafts."""

from __future__ import annotations

import pytest

from engine import Completion, EngineConfig, EngineError
from engine.base.request import Request
from engine.core.engine import Engine
from engine.service import EngineService
from engine.tools.decode_benchmark import DecodeBenchmark
from tests.engine.helpers.drive import completions, fresh, request, submit
from tests.engine.helpers.tiny import write_tiny_mamba

TEXTS = ("abc", "hello world" * 6, "cafe dig", "bead" * 20, "fade", "bead" * 20 + "gig")


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_mamba(tmp_path_factory.mktemp("models") / "mamba.gguf")


def run(engine: Engine, requests: list[Request]) -> dict[str, Completion]:
    """Without drive.run's look at the cache: here a sequence is one cell, whatever its length."""
    submit(engine, *requests)
    ended = {}
    while not engine.idle:
        ended |= {e.request_id: e.outcome for e in engine.step().ended}
    return completions(ended)


def test_batched_equals_single(mamba: str) -> None:
    requests = [request(f"r{i}", text) for i, text in enumerate(TEXTS)]
    single = fresh(mamba, slots=1)
    reference = {name: c for r in requests for name, c in run(single, [r]).items()}
    batched = run(fresh(mamba), requests)
    assert {name: c.tokens for name, c in batched.items()} == {n: c.tokens for n, c in reference.items()}
    assert not any(c.cached_tokens for c in batched.values())


def test_it_has_no_lanes_and_nothing_is_cached(mamba: str) -> None:
    engine = fresh(mamba)
    run(engine, [request(f"r{i}", "bead" * 20) for i in range(3)])
    assert engine.layouts.lanes is None
    assert not engine.layouts.movable
    assert not engine.layouts.shared.trees
    assert not len(engine.scheduler._prefix_cache)


def test_no_source_drafts_for_it(mamba: str) -> None:
    service = EngineService(EngineConfig(model=mamba, slots=2, kv_cells=512))
    try:
        assert service.info.draft_sources == ()
        assert service.submit(request("r", "abcabcabc")).result(60).completion_tokens == 24
    finally:
        service.close()


def test_there_is_nothing_to_measure(mamba: str) -> None:
    with pytest.raises(EngineError, match="cannot forget refused drafts"):
        DecodeBenchmark(EngineConfig(model=mamba, slots=2, kv_cells=512), 8)
