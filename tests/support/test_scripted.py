"""The scripted engine tells text as the real one does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import accumulate

import pytest

from engine import EngineConfig, FinishReason, Request, SamplingParams, TextDelta
from tests.support.scripted import ScriptedEngine, _Entry, _Listener, load
from tests.support.workers import wait_until


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = load(EngineConfig(slots=2))
    yield engine
    engine.close()


def script(words: str, logprobs: int | None = None) -> Request:
    return Request(id="r", prompt=words, sampling=SamplingParams(logprobs=logprobs))


class Heard:
    def __init__(self) -> None:
        self.deltas: list[TextDelta] = []
        self.times: list[float] = []

    def __call__(self, delta: TextDelta) -> None:
        self.deltas.append(delta)
        self.times.append(time.monotonic())

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


@pytest.mark.parametrize(
    "words", ["hello there", "tokens=6 delay=0.05 hello there", "chunks=3 delay=0.05 abc def"]
)
def test_the_deltas_join_to_the_result(engine: ScriptedEngine, words: str) -> None:
    heard = Heard()
    result = engine.submit(script(words, logprobs=1), heard).result(timeout=5)
    assert heard.text == result.text
    assert sum(delta.tokens for delta in heard.deltas) == len(result.tokens)
    assert tuple(one for delta in heard.deltas for one in delta.logprobs) == result.logprobs


def test_pieces_come_evenly_over_the_delay(engine: ScriptedEngine) -> None:
    """None is early; a busy machine may tell two at once."""
    heard = Heard()
    began = time.monotonic()
    engine.submit(script("chunks=4 tokens=8 delay=0.4 one two three four"), heard).result(timeout=5)
    told = list(accumulate(delta.tokens for delta in heard.deltas))
    assert told[-1] == 8
    assert all(tokens % 2 == 0 for tokens in told)
    for tokens, at in zip(told, heard.times, strict=True):
        assert at - began >= tokens / 2 * 0.1


def test_the_next_piece_is_due_when_it_is_said() -> None:
    words = {"chunks": "4", "tokens": "8", "delay": "4"}
    entry = _Entry(0, 0, script("x"), Future(), words, "one two three four", arrived=0.0, admitted=7.0)
    entry.listeners.append(_Listener(None))
    assert [entry.due(7.0 + 0.5 * n) for n in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert entry.next_piece() == 8.0
    entry.tell(3, 6)
    assert entry.next_piece() is None, "the last comes with the end"


def test_a_late_listener_hears_everything(engine: ScriptedEngine) -> None:
    early, heard = Heard(), Heard()
    future = engine.submit(script("tokens=100 delay=10 a longer answer"), early)
    wait_until(lambda: len(early.deltas) > 1)
    assert engine.listen("r", heard)
    wait_until(lambda: len(heard.deltas) > 1)
    engine.cancel("r")
    assert future.result(timeout=5).text == heard.text == early.text
    assert not engine.listen("r", heard)


def test_a_cancelled_one_is_told_to_its_end(engine: ScriptedEngine) -> None:
    heard = Heard()
    future = engine.submit(script("tokens=100 delay=5 a longer answer"), heard)
    wait_until(lambda: len(heard.deltas) > 1)
    engine.cancel("r")
    result = future.result(timeout=5)
    assert result.finish_reason is FinishReason.CANCELLED
    assert heard.text == result.text
    assert sum(delta.tokens for delta in heard.deltas) == len(result.tokens)


def test_a_listener_that_raises_is_dropped(engine: ScriptedEngine) -> None:
    calls = []

    def broken(delta: TextDelta) -> None:
        calls.append(delta)
        raise ZeroDivisionError

    assert engine.submit(script("tokens=5 delay=0.1 abcdef"), broken).result(timeout=5).text == "abcdef"
    assert len(calls) == 1
