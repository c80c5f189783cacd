"""The exchange of an engine's weights for others, and what goes wrong while the fastest are measured."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from engine import EngineConfig, ModelLoadError, load
from engine.base.config import RowLimits
from engine.core.engine import Engine
from engine.core.layout_setup import Layouts, make_layouts
from engine.host.idle_time import Piece, Stopped
from engine.llama.model import Model, default_model_path
from engine.weights import format_selection
from engine.weights.format_selection import UNPACKED_S, Timing, unpacked
from tests.engine.helpers.drive import completions, opened, prompts, request, run, same
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

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_engines")]

# The exchange of the weights


def test_an_engine_goes_on_with_other_weights_as_if_it_had_begun_with_them(packed: str) -> None:
    engine = opened(config(packed, weights="as_shipped"))
    requests = [request(str(i), p, logprobs=1) for i, p in enumerate(prompts(4))]
    before = completions(run(engine, requests))
    other = Model(packed, weights=unpacked(packed))
    engine.exchange_weights(other)
    assert engine.layouts.used == 0
    after = completions(run(engine, requests))
    expected = completions(run(opened(config(packed, weights="bf16")), requests))
    for name, completion in expected.items():
        same(after[name], completion)
    assert any(before[name].logprobs != after[name].logprobs for name in before)


def test_the_old_weights_are_let_go(packed: str) -> None:
    engine = opened(config(packed, weights="as_shipped"))
    old = weakref.ref(engine.model)
    completions(run(engine, [request("r", "abc", grammar='start: "a"')]))
    engine.exchange_weights(Model(packed, weights=unpacked(packed)))
    assert old() is None
    completions(run(engine, [request("r", "abc", grammar='start: "a"')]))
    engine.close()


def test_without_memory_for_the_others_it_goes_on_with_its_own(
    packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(config(packed, weights="as_shipped"))
    [before] = completions(run(engine, [request("r", "Tell me a story")])).values()
    other = Model(packed, weights=unpacked(packed))

    def short(config: EngineConfig, model: Model, limits: RowLimits) -> Layouts:
        if model is other:
            raise ModelLoadError("no memory")
        return make_layouts(config, model, limits)

    monkeypatch.setattr("engine.core.engine.make_layouts", short)
    with pytest.raises(ModelLoadError, match="no memory"):
        engine.exchange_weights(other)
    assert engine.model is not other
    assert "Q8_0" in engine.info.quantization
    [after] = completions(run(engine, [request("r", "Tell me a story")])).values()
    same(after, before)


# What goes wrong


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_without_memory_for_the_exchange_a_worker_goes_on(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    as_timed(monkeypatch, SLOW, FAST)

    def short(_self: Engine, _model: Model) -> None:
        raise ModelLoadError("no memory")

    monkeypatch.setattr(Engine, "exchange_weights", short)
    service = start(config(packed, speculation=False))
    measured(service)
    same(answer(service), reference(packed, "as_shipped"))
    assert warnings(caplog) == ["weights stay as they are: no memory"]


def test_a_disk_without_room_is_said_once_and_no_obstacle(
    packed: str, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_args: object, **_named: object) -> None:
        raise ModelLoadError("cannot be written: No space left on device")

    monkeypatch.setattr(format_selection, "requantise", full)
    service = start(config(packed))
    measured(service)
    assert warnings(caplog) == [
        "weights stay as they are in the file: cannot be written: No space left on device"
    ]
    assert answer(service).completion_tokens == 24


@pytest.mark.parametrize("error", [ModelLoadError("no memory"), ZeroDivisionError("a bug")], ids=str)
def test_without_t_of_n_requests_are_decoded_plainly(
    tiny_gguf: str,
    start: Start,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(*_args: object) -> None:
        raise error

    monkeypatch.setattr("engine.speculative.setup.row_timer", failing)
    service = start(config(tiny_gguf))
    measured(service)
    assert len(warnings(caplog)) == 1
    done = answer(service)
    assert done.completion_tokens == 24
    assert not done.drafted


def test_closing_ends_the_measuring(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def time_formats(_models: list[Model], _config: EngineConfig, piece: Piece) -> list[Timing]:
        while True:
            with piece():
                begun.set()

    monkeypatch.setattr(format_selection, "time_formats", time_formats)
    service = load(config(packed))
    assert begun.wait(ANSWERED_S)
    service.close()
    assert not service._tuning._thread.is_alive()


def test_unpacking_can_be_ended(cache: Path) -> None:
    def ended() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        unpacked(default_model_path(), ended)  # type: ignore[arg-type]
    assert list(cache.iterdir()) == []


def test_unpacking_enters_a_piece_now_and_then(cache: Path) -> None:
    entered = []

    @contextmanager
    def piece() -> Iterator[None]:
        entered.append(time.monotonic())
        yield

    assert Path(unpacked(default_model_path(), piece)).parent == cache
    assert entered
    assert all(later - earlier >= UNPACKED_S for earlier, later in pairwise(entered))


def test_what_is_given_is_not_measured(packed: str, start: Start, cache: Path) -> None:
    service = start(config(packed, weights="as_shipped", speculation=False))
    assert not service.info.measuring
    assert answer(service).completion_tokens == 24
    assert not cache.exists()
