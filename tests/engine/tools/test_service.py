"""The engine on its thread: futures, the batch window, cancelling, closing, breaking."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine import (
    Completion,
    EngineClosed,
    EngineConfig,
    EngineError,
    FinishReason,
    Progress,
    RequestRefused,
    TextDelta,
    load,
)
from engine.core.engine import StepReport
from engine.service import EngineService
from tests.engine.helpers.drive import alone, prompts, request, same
from tests.support.workers import wait_until


def tiny_service(path: str, **config: object) -> EngineService:
    return load(EngineConfig(**{"model": path, "slots": 4, "kv_cells": 2048, "kv_type": "f32", **config}))  # type: ignore[arg-type]


@pytest.fixture
def service(tiny_gguf: str) -> Iterator[EngineService]:
    service = tiny_service(tiny_gguf)
    yield service
    service.close()


class Paced:
    """Holds the engine before each step that it is not let make: what comes meanwhile comes in time."""

    def __init__(self, service: EngineService) -> None:
        self._permits = threading.Semaphore(0)
        self._held = threading.Event()
        self._service = service
        self._step = service._engine.step
        service._engine.step = self._paced  # type: ignore[method-assign]

    def _paced(self) -> StepReport:
        if not self._permits.acquire(blocking=False):
            self._held.set()
            assert self._permits.acquire(timeout=60)
        return self._step()

    def let(self, steps: int) -> None:
        """Returns when they are made."""
        assert self._held.wait(60)
        self._held.clear()
        self._permits.release(steps)
        assert self._held.wait(60)

    def go(self) -> None:
        """For as many as there may be."""
        self._permits.release(10_000)

    def close(self) -> None:
        """Of the service, while a step is under way."""
        closing = threading.Thread(target=self._service.close)
        closing.start()
        wait_until(lambda: self._service._closed)
        self.go()
        closing.join()


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
    assert metrics.generated_tokens_total == sum(c.completion_tokens for c in results)
    assert metrics.prompt_tokens_total == sum(c.prompt_tokens for c in results)
    computed = sum(c.prompt_tokens - c.cached_tokens for c in results)
    emitted_from_prompt_rows = len(results)
    assert metrics.prefill_tokens_total == computed - emitted_from_prompt_rows
    assert metrics.prefix_hit_tokens_total == sum(c.cached_tokens for c in results)
    assert 0 < metrics.batch_occupancy <= 1
    assert metrics.running == metrics.waiting == 0


def test_the_progress_of_requests_is_what_they_have_got(service: EngineService) -> None:
    paced = Paced(service)
    futures = [
        service.submit(request(f"r{i}", p, max_tokens=40, ignore_eos=True)) for i, p in enumerate(prompts(6))
    ]
    assert service.progress(["r0", "unknown"]) == Progress(0, 0)
    paced.let(1)
    paced.let(8)
    found = service.progress([f"r{i}" for i in range(6)])
    assert found.running == service.info.slots == 4
    assert 4 * 8 <= found.tokens <= 4 * 9
    assert service.progress(["r0"]).tokens in (8, 9)
    assert service.progress(["r5"]) == Progress(0, 0), "it waits"
    paced.go()
    for future in futures:
        future.result(timeout=30)
    assert service.progress(["r0", "r5"]) == Progress(0, 0), "they have ended"


def test_the_hit_rate_is_what_was_shared(service: EngineService) -> None:
    family = [request(f"r{i}", "cafe dig edge fade gig hide ice " * 3 + p) for i, p in enumerate(prompts(6))]
    results = [service.submit(r).result(timeout=30) for r in family]
    shared, whole = sum(c.cached_tokens for c in results), sum(c.prompt_tokens for c in results)
    assert shared > whole / 4
    assert service.metrics().prefix_hit_rate == shared / whole


def test_refusals_come_through_the_future(service: EngineService) -> None:
    future = service.submit(request("r", "abc", max_tokens=10**6))
    assert isinstance(future.exception(timeout=5), RequestRefused)


def test_a_grammar_is_refused_through_the_future(service: EngineService) -> None:
    """On the thread that submits: the engine's never sees it."""
    submitting = threading.get_ident()
    prepared_on = []
    prepare = service._engine.prepare

    def noted(*args: object) -> object:
        prepared_on.append(threading.get_ident())
        return prepare(*args)  # type: ignore[arg-type]

    service._engine.prepare = noted  # type: ignore[assignment, method-assign]
    error = service.submit(request("r", "abc", grammar="root ::= root")).exception(timeout=5)
    assert isinstance(error, RequestRefused)
    assert (error.param, error.code) == ("response_format", "invalid_schema")
    assert prepared_on == [submitting]
    assert service.submit(request("r", "abc", grammar='start: "a"')).result(timeout=5).text == "a"


def test_an_id_is_in_use_only_once(service: EngineService) -> None:
    paced = Paced(service)
    first = service.submit(request("r", "abc", max_tokens=500))
    error = service.submit(request("r", "abc")).exception(timeout=5)
    assert isinstance(error, EngineError)
    assert error.code == "duplicate_request"
    service.cancel("r")
    paced.go()
    assert first.result(timeout=5).finish_reason is FinishReason.CANCELLED
    assert not service.cancel("r")


def test_the_batch_window_waits_for_company(tiny_gguf: str) -> None:
    service = tiny_service(tiny_gguf)
    service._window_s = 60.0
    try:
        futures = []
        for i in range(4):  # the fourth fills the slots and ends the window early
            futures.append(service.submit(request(f"r{i}", "abc", max_tokens=5)))
            time.sleep(0.02)
        for future in futures:
            future.result(timeout=30)
        # all four prompts went in together, so five steps did it all
        assert service.metrics().steps_total == 5
    finally:
        service.close()


def test_the_batch_window_closes_without_company(tiny_gguf: str) -> None:
    service = tiny_service(tiny_gguf, batch_window_ms=300)
    began = time.monotonic()
    done = service.submit(request("r", "abc", max_tokens=5)).result(timeout=30)
    assert time.monotonic() - began >= 0.3
    assert done.completion_tokens == 5
    service.close()


def test_closing_ends_what_is_inside(tiny_gguf: str) -> None:
    service = tiny_service(tiny_gguf)
    paced = Paced(service)
    future = service.submit(request("r", "abc", max_tokens=900))
    paced.let(3)
    paced.close()
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


# Text as it comes


class Heard:
    """A listener that keeps what it hears, and on which thread."""

    def __init__(self) -> None:
        self.deltas: list[TextDelta] = []
        self.threads: set[str] = set()
        self.first = threading.Event()

    def __call__(self, delta: TextDelta) -> None:
        self.deltas.append(delta)
        self.threads.add(threading.current_thread().name)
        self.first.set()

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    def is_all_of(self, completion: Completion) -> None:
        assert self.text == completion.text
        assert sum(delta.tokens for delta in self.deltas) == len(completion.tokens)
        logprobs = tuple(one for delta in self.deltas for one in delta.logprobs)
        assert logprobs == (completion.logprobs or ())


@pytest.mark.parametrize("sampling", [{}, {"logprobs": 2}, {"temperature": 1.5, "logprobs": 0}], ids=str)
def test_a_listener_hears_all_of_its_own_text(service: EngineService, sampling: dict[str, object]) -> None:
    heard = [Heard() for _ in range(8)]
    requests = [request(f"r{i}", p, seed=i, **sampling) for i, p in enumerate(prompts(8))]
    futures = [service.submit(r, on_text=one) for r, one in zip(requests, heard, strict=True)]
    for one, future in zip(heard, futures, strict=True):
        one.is_all_of(future.result(timeout=30))
        assert one.threads == {"engine"}
        assert len(one.deltas) > 5, "piece by piece"
        assert all(delta.text for delta in one.deltas[:-1])


def test_what_was_heard_is_complete_before_the_result(service: EngineService) -> None:
    heard = Heard()
    future = service.submit(request("r", "abc"), heard)
    texts = []
    future.add_done_callback(lambda done: texts.append((heard.text, done.result().text)))
    wait_until(lambda: bool(texts))
    assert texts == [(heard.text, heard.text)]


def test_a_stop_string_is_not_heard(service: EngineService) -> None:
    whole = service.submit(request("r", "cabbage", max_tokens=40)).result(timeout=5)
    for at in range(4, len(whole.text) - 3, 5):
        heard = Heard()
        stop = whole.text[at : at + 3]
        future = service.submit(request("r", "cabbage", max_tokens=40, stop=(stop,), logprobs=1), heard)
        heard.is_all_of(future.result(timeout=5))
        assert stop not in heard.text


def test_a_cancelled_request_is_heard_up_to_its_end(service: EngineService) -> None:
    heard, paced = Heard(), Paced(service)
    future = service.submit(request("r", "cabbage", max_tokens=900, stop=("no such text",)), heard)
    paced.let(20)
    assert heard.first.is_set()
    service.cancel("r")
    paced.go()
    completion = future.result(timeout=5)
    assert completion.finish_reason is FinishReason.CANCELLED
    heard.is_all_of(completion)


def test_a_late_listener_hears_everything(service: EngineService) -> None:
    early, late, later = Heard(), Heard(), Heard()
    paced = Paced(service)
    future = service.submit(request("r", "cabbage", max_tokens=700, logprobs=1), early)
    paced.let(20)
    assert service.listen("r", late)
    paced.let(1)
    assert len(late.deltas[0].text) > 10, "all so far comes first"
    assert service.listen("r", later)
    paced.go()
    completion = future.result(timeout=30)
    for one in (early, late, later):
        one.is_all_of(completion)
    assert not service.listen("r", Heard())
    assert not service.listen("unknown", Heard())


def test_listening_to_one_that_still_waits(tiny_gguf: str) -> None:
    service = tiny_service(tiny_gguf, slots=1)
    paced = Paced(service)
    first = service.submit(request("first", "abc", max_tokens=300))
    second = service.submit(request("second", "bead"))
    heard = Heard()
    assert service.listen("second", heard)
    paced.go()
    heard.is_all_of(second.result(timeout=10))
    assert first.done()
    service.close()


@pytest.mark.slow
def test_no_listener_misses_the_end_however_late_it_comes(service: EngineService) -> None:
    """It hears everything, or is told that the request is not here."""
    outcomes = set()
    for i in range(150):
        heard = Heard()
        future = service.submit(request("r", "abc", max_tokens=6))
        time.sleep(i * 2e-5)
        known = service.listen("r", heard)
        completion = future.result(timeout=5)
        if known:
            heard.is_all_of(completion)
        else:
            assert not heard.deltas
        outcomes.add(known)
    assert True in outcomes


def test_a_listener_that_raises_is_dropped_and_harms_nobody(
    service: EngineService, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def broken(delta: TextDelta) -> None:
        calls.append(delta)
        raise ZeroDivisionError("a bug of the caller's")

    heard, other, paced = Heard(), Heard(), Paced(service)
    with caplog.at_level(logging.ERROR):
        bad = service.submit(request("bad", "abc"), broken)
        good = service.submit(request("good", "bead"), heard)
        assert service.listen("bad", other)
        paced.go()
        heard.is_all_of(good.result(timeout=5))
        other.is_all_of(bad.result(timeout=5))
    assert len(calls) == 1
    assert [record.message for record in caplog.records] == ["the listener of bad raised, and is dropped"]
    assert service.submit(request("next", "abc")).result(timeout=5).text


def test_an_error_ends_what_is_heard(tiny_gguf: str) -> None:
    service = tiny_service(tiny_gguf)
    heard, paced = Heard(), Paced(service)
    future = service.submit(request("r", "abc", max_tokens=900), heard)
    paced.let(3)
    assert heard.first.is_set()
    paced.close()
    assert isinstance(future.exception(timeout=5), EngineClosed)
    count = len(heard.deltas)
    time.sleep(0.05)
    assert len(heard.deltas) == count
    assert not service.listen("r", Heard())
