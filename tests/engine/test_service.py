"""The engine on its thread: futures, the batch window, cancelling, closing, breaking."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine import EngineClosed, EngineConfig, EngineError, FinishReason, RequestRefused, load
from engine.service import EngineService
from tests.engine.drive import alone, request, same
from tests.engine.test_exactness import prompts


def tiny_service(path: str, **config: object) -> EngineService:
    return load(EngineConfig(**{"model": path, "slots": 4, "kv_cells": 2048, "kv_type": "f32", **config}))  # type: ignore[arg-type]


@pytest.fixture
def service(tiny_gguf: str) -> Iterator[EngineService]:
    service = tiny_service(tiny_gguf)
    yield service
    service.close()


def test_many_threads_get_their_own_results(tiny_gguf: str) -> None:
    """Batch-invariant, since the threads' order changes from run to run and float noise can move a draw."""
    exact = {"kv_type": "f16", "batch_invariant": True}
    service = tiny_service(tiny_gguf, **exact)
    requests = [request(f"r{i}", p, temperature=0.8, seed=i) for i, p in enumerate(prompts(24))]
    reference = alone(tiny_gguf, requests, **exact)
    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(lambda r: service.submit(r).result(timeout=60), requests))
    for r, result in zip(requests, results, strict=True):
        same(result, reference[r.id])
    metrics = service.metrics()
    service.close()
    assert metrics["generated_tokens_total"] == sum(c.completion_tokens for c in results)
    assert metrics["prompt_tokens_total"] == sum(c.prompt_tokens for c in results)
    computed = sum(c.prompt_tokens - c.cached_tokens for c in results)
    emitted_from_prompt_rows = len(results)
    assert metrics["prefill_tokens_total"] == computed - emitted_from_prompt_rows
    assert metrics["prefix_hit_tokens_total"] == sum(c.cached_tokens for c in results)
    assert 0 < metrics["batch_occupancy"] <= 1
    assert metrics["running"] == metrics["waiting"] == 0


def test_the_hit_rate_is_what_was_shared(service: EngineService) -> None:
    family = [request(f"r{i}", "cafe dig edge fade gig hide ice " * 3 + p) for i, p in enumerate(prompts(6))]
    results = [service.submit(r).result(timeout=30) for r in family]
    shared, whole = sum(c.cached_tokens for c in results), sum(c.prompt_tokens for c in results)
    assert shared > whole / 4
    assert service.metrics()["prefix_hit_rate"] == shared / whole


def test_refusals_come_through_the_future(service: EngineService) -> None:
    future = service.submit(request("r", "abc", max_tokens=10**6))
    assert isinstance(future.exception(timeout=5), RequestRefused)


def test_an_id_is_in_use_only_once(service: EngineService) -> None:
    first = service.submit(request("r", "abc", max_tokens=500))
    error = service.submit(request("r", "abc")).exception(timeout=5)
    assert isinstance(error, EngineError)
    assert error.code == "duplicate_request"
    service.cancel("r")
    assert first.result(timeout=5).finish_reason is FinishReason.CANCELLED
    assert not service.cancel("r")


def test_the_batch_window_waits_for_company(tiny_gguf: str) -> None:
    service = tiny_service(tiny_gguf, batch_window_ms=300)
    try:
        futures = []
        for i in range(4):  # the fourth fills the slots and ends the window early
            futures.append(service.submit(request(f"r{i}", "abc", max_tokens=5)))
            time.sleep(0.02)
        began = time.monotonic()
        for future in futures:
            future.result(timeout=5)
        assert time.monotonic() - began < 0.2
        # all four prompts went in together, so five steps did it all
        assert service.metrics()["steps_total"] == 5
    finally:
        service.close()


def test_closing_ends_what_is_inside(tiny_gguf: str) -> None:
    service = tiny_service(tiny_gguf)
    future = service.submit(request("r", "abc", max_tokens=900))
    service.close()
    assert isinstance(future.exception(timeout=5), EngineClosed)
    assert isinstance(service.submit(request("s", "abc")).exception(timeout=5), EngineClosed)


def test_an_error_of_its_own_closes_the_engine(tiny_gguf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = tiny_service(tiny_gguf)

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(service._engine, "step", broken)
    error = service.submit(request("r", "abc")).exception(timeout=5)
    assert isinstance(error, EngineClosed)
    assert "internal error" in error.message
    service.close()
