"""A first start: what is fastest is measured while no request runs; the first bulk requests wait for it."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from engine import EngineConfig, Request, TextDelta
from engine.base.errors import EngineClosed
from engine.base.request import FinishReason
from engine.core.engine import Engine
from engine.host.idle_time import IdleTime, Piece
from engine.llama.model import Model
from engine.speculative import latency_model, tuning
from engine.speculative.tuning import Tuning
from engine.weights import format_selection
from engine.weights.format_selection import Timing, unpacked
from tests.engine.helpers.drive import prompts, request, same
from tests.engine.speculative.tuning.first_start import (
    ANSWERED_S,
    FAST,
    SLOW,
    Start,
    answer,
    as_timed,
    config,
    measured,
    reference,
)
from tests.support.workers import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_engines")]


def test_the_first_request_is_answered_before_anything_is_measured(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """Then the faster format is taken, kept, and loaded by the next start."""
    release = threading.Event()
    unpack = format_selection.unpacked

    def late(path: str, piece: Piece | None = None) -> str:
        assert release.wait(ANSWERED_S)
        return unpack(path, piece)

    monkeypatch.setattr(format_selection, "unpacked", late)
    as_timed(monkeypatch, SLOW, FAST)
    service = start(config(packed))
    same(answer(service), reference(packed, "as_shipped"))
    assert (service.info.measuring, service.info.draft_sources) == (True, ("grammar", "lookup"))
    assert "Q8_0" in service.info.quantization
    assert not cache.exists()
    release.set()
    measured(service)
    assert "BF16" in service.info.quantization
    same(answer(service, "again"), reference(packed, "bf16"))
    monkeypatch.delattr(format_selection, "time_formats")
    monkeypatch.delattr(latency_model, "measure")
    monkeypatch.setattr(format_selection, "unpacked", unpack)
    next_one = start(config(packed))
    assert not next_one.info.measuring
    assert "BF16" in next_one.info.quantization


def test_both_are_really_measured(packed: str, start: Start, cache: Path) -> None:
    service = start(config(packed))
    measured(service)
    assert sorted(path.name.partition("-")[0] for path in cache.iterdir()) == [
        "build",
        "formats",
        "row_times",
        "weights",
    ]
    assert answer(service).completion_tokens == 24
    assert not start(config(packed)).info.measuring


def test_a_request_waits_for_one_piece_at_most(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()
    pieces = 0

    def time_formats(_models: list[Model], _config: EngineConfig, piece: Piece) -> list[Timing]:
        nonlocal pieces
        while pieces < 100:
            with piece():
                pieces += 1
                begun.set()
                assert end.wait(ANSWERED_S)
        return [FAST, SLOW]

    monkeypatch.setattr(format_selection, "time_formats", time_formats)
    seen: list[int] = []

    def heard(_delta: TextDelta) -> None:
        seen.append(pieces)

    service = start(config(packed, speculation=False))
    assert begun.wait(ANSWERED_S)
    futures = [service.submit(request(str(i), p), heard) for i, p in enumerate(prompts(3))]
    assert not any(future.done() for future in futures)
    wait_until(lambda: not service._tuning._idle_time._given, ANSWERED_S)  # the engine's thread has woken
    end.set()
    for future in futures:
        future.result(ANSWERED_S)
    assert set(seen) == {1}, "no further piece began while requests ran"
    measured(service)
    assert pieces == 100
    assert "Q8_0" in service.info.quantization


def test_constant_load_leaves_a_share_of_the_time(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(tuning, "BUSY_S", 0.0)
    monkeypatch.setattr(tuning, "BUSY_SHARE", 10.0)
    monkeypatch.setattr(IdleTime, "given", lambda _self: nullcontext())  # there is never a pause
    service = start(config(packed))
    for i in range(500):
        assert answer(service, str(i), max_tokens=100).completion_tokens == 100
        if list(cache.glob("row_times-*")):
            break
    measured(service)


def test_no_answer_comes_from_two_formats(packed: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    release, found = threading.Event(), threading.Event()

    def faster(model: Model, config: EngineConfig, _piece: Piece) -> Model:
        assert release.wait(ANSWERED_S)
        return Model(model.path, config.gpu_layers, unpacked(model.path))

    adopt, wake = Tuning.adopt, threading.Event()

    def noted(tuning: Tuning) -> None:
        wake.set()
        adopt(tuning)

    monkeypatch.setattr("engine.speculative.tuning.faster", faster)
    monkeypatch.setattr(Tuning, "adopt", noted)
    service = start(config(packed, speculation=False))
    formats: set[str] = set()

    def heard(_delta: TextDelta) -> None:
        formats.add(service.info.quantization)
        if not release.is_set():
            release.set()
            wait_until(lambda: service._tuning.quiet_s is not None, ANSWERED_S)
            found.set()

    done = service.submit(request("r", "Tell me a story"), heard).result(ANSWERED_S)
    assert found.is_set(), "it was known while the request ran"
    assert not wake.is_set()
    same(done, reference(packed, "as_shipped"))
    assert len(formats) == 1
    measured(service)
    assert "BF16" in service.info.quantization


def bulk(name: str, **sampling: object) -> Request:
    return replace(request(name, "Tell me a story", **sampling), priority=1)


def found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another format is the faster one, and no pause lets the engine adopt it."""

    def faster(model: Model, config: EngineConfig, _piece: Piece) -> Model:
        return Model(model.path, config.gpu_layers, unpacked(model.path))

    monkeypatch.setattr(tuning, "faster", faster)
    monkeypatch.setattr(tuning, "QUIET_S", ANSWERED_S)
    monkeypatch.setattr(tuning, "DRAIN_AFTER_S", 1e-6)  # after one step
    monkeypatch.setattr(tuning, "MEASURED_FIRST_S", 0.0)


def test_bulk_requests_without_a_pause_wait_once_for_a_change(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_at_once(monkeypatch)
    either = [reference(packed, weights, slots=1) for weights in ("as_shipped", "bf16")]
    service = start(config(packed, speculation=False, slots=1))
    running = [service.submit(bulk(str(n))) for n in range(8)]
    give_up = time.monotonic() + ANSWERED_S
    for n in itertools.count(8):
        done = running.pop(0).result(ANSWERED_S)
        assert done.tokens in [one.tokens for one in either], "of one format from its beginning to its end"
        running.append(service.submit(bulk(str(n))))
        if not service.info.measuring:
            break
        assert time.monotonic() < give_up, "no change without a pause"
    assert "BF16" in service.info.quantization
    assert running[-1].result(ANSWERED_S).tokens == either[1].tokens


def test_interactive_requests_do_not_wait_for_a_change(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_at_once(monkeypatch)
    slowed(monkeypatch)
    service = start(config(packed, speculation=False, slots=3))
    wait_until(lambda: service._tuning.quiet_s is not None, ANSWERED_S)
    first = service.submit(bulk("long", max_tokens=400))
    wait_until(service._tuning.holds_bulk, ANSWERED_S)
    held = service.submit(bulk("held", max_tokens=2))
    gone = service.submit(bulk("gone", max_tokens=2))
    late = service.submit(replace(bulk("late", max_tokens=2), deadline=time.time() + 0.01))
    service.cancel("gone")
    assert answer(service, "interactive", max_tokens=2).completion_tokens == 2
    assert gone.result(ANSWERED_S).finish_reason is FinishReason.CANCELLED
    assert late.result(ANSWERED_S).finish_reason is FinishReason.EXPIRED
    assert not held.done()
    assert not first.done()
    assert service.metrics().waiting == 1
    assert held.result(ANSWERED_S).completion_tokens == 2
    assert first.done()
    assert "BF16" in service.info.quantization


def slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or all 400 tokens of the tiny model end before a further request begins."""
    step = Engine.step

    def slow_step(engine: Engine) -> object:
        time.sleep(0.005)
        return step(engine)

    monkeypatch.setattr(Engine, "step", slow_step)


def measured_at(event: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another format turns out to be the faster one, once the event is set."""

    def faster(model: Model, config: EngineConfig, piece: Piece) -> Model:
        while not event.wait(0.01):
            with piece():  # which ends with the engine
                pass
        return Model(model.path, config.gpu_layers, unpacked(model.path))

    monkeypatch.setattr(tuning, "faster", faster)


def test_the_first_bulk_requests_wait_for_what_is_measured(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = threading.Event()
    measured_at(known, monkeypatch)
    monkeypatch.setattr(tuning, "MEASURED_FIRST_S", ANSWERED_S)
    service = start(config(packed, speculation=False))
    formats: set[str] = set()

    def heard(_delta: TextDelta) -> None:
        formats.add(service.info.quantization)

    first = [service.submit(bulk(str(n)), heard) for n in range(3)]
    wait_until(lambda: service.metrics().waiting == 3)
    same(answer(service, "interactive"), reference(packed, "as_shipped"))
    late = service.submit(replace(bulk("late"), deadline=time.time() + 0.2))
    assert late.result(ANSWERED_S).finish_reason is FinishReason.EXPIRED
    assert service.metrics().waiting == 3
    known.set()
    expected = reference(packed, "bf16").tokens
    assert [one.result(ANSWERED_S).tokens for one in first] == [expected] * 3
    assert len(formats) == 1
    assert "BF16" in formats.pop()


def test_the_first_bulk_requests_wait_no_longer_than_that(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_at(threading.Event(), monkeypatch)
    most = tuning.MEASURED_FIRST_S
    monkeypatch.setattr(tuning, "MEASURED_FIRST_S", 0.3)
    service = start(config(packed, speculation=False))
    began = time.monotonic()
    assert service.submit(bulk("first")).result(ANSWERED_S).completion_tokens == 24
    assert 0.3 <= time.monotonic() - began < most
    assert service.info.measuring
    assert service.submit(bulk("later")).result(ANSWERED_S).completion_tokens == 24
    assert "Q8_0" in service.info.quantization


def test_bulk_requests_do_not_wait_for_what_is_hardly_measured(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_at(threading.Event(), monkeypatch)
    slowed(monkeypatch)
    monkeypatch.setattr(tuning, "MEASURED_FIRST_S", 2.0 * ANSWERED_S)
    monkeypatch.setattr(tuning, "BUSY_S", 0.0)
    service = start(config(packed, speculation=False))
    began = threading.Event()
    interactive = service.submit(request("long", "Tell me", max_tokens=400), lambda _delta: began.set())
    assert began.wait(ANSWERED_S)
    assert service.submit(bulk("first", max_tokens=2)).result(ANSWERED_S).completion_tokens == 2
    assert not interactive.done()


def test_a_stopped_engine_answers_the_first_ones_too(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_at(threading.Event(), monkeypatch)
    service = start(config(packed, speculation=False))
    gone, held = service.submit(bulk("gone")), service.submit(bulk("held"))
    wait_until(lambda: service.metrics().waiting == 2)
    service.cancel("gone")
    assert gone.result(ANSWERED_S).finish_reason is FinishReason.CANCELLED
    service.close()
    with pytest.raises(EngineClosed):
        held.result(ANSWERED_S)


def test_a_request_that_takes_long_does_not_hold_the_others_up(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_at_once(monkeypatch)
    slowed(monkeypatch)
    monkeypatch.setattr(tuning, "DRAIN_S", 0.1)
    service = start(config(packed, speculation=False))
    wait_until(lambda: service._tuning.quiet_s is not None, ANSWERED_S)
    first = service.submit(bulk("long", max_tokens=400))
    wait_until(lambda: service._tuning._busy_s > 0, ANSWERED_S)
    assert service.submit(bulk("short", max_tokens=2)).result(ANSWERED_S).completion_tokens == 2
    assert not first.done()
    assert "Q8_0" in service.info.quantization


def test_a_stopped_engine_answers_what_it_holds(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_at_once(monkeypatch)
    service = start(config(packed, speculation=False))
    wait_until(lambda: service._tuning.quiet_s is not None, ANSWERED_S)
    service.submit(bulk("long", max_tokens=400))
    wait_until(service._tuning.holds_bulk, ANSWERED_S)
    held = service.submit(bulk("held"))
    service.close()
    with pytest.raises(EngineClosed):
        held.result(ANSWERED_S)


def test_nothing_is_drafted_until_it_is_known_where_that_pays(
    tiny_gguf: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    measure = latency_model.measure

    def late(*args: object) -> latency_model.LatencyProfile:
        assert release.wait(ANSWERED_S)
        measure(*args)  # type: ignore[arg-type]
        return latency_model.LatencyProfile({1: 0.01, 64: 0.01})

    monkeypatch.setattr(latency_model, "measure", late)
    service = start(config(tiny_gguf))
    text = "abcabcabcabc" * 8
    plain = service.submit(request("plain", text, max_tokens=60)).result(ANSWERED_S)
    assert not plain.drafted
    release.set()
    measured(service)
    drafted = service.submit(request("drafted", text, max_tokens=60)).result(ANSWERED_S)
    assert drafted.drafted
    assert drafted.tokens == plain.tokens
