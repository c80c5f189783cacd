"""Grammars that take time or memory to compile: refused within limits, and nobody else waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from engine import Completion, EngineClosed, EngineError, FinishReason, Request, RequestRefused
from engine.base.request import SamplingParams
from engine.sampling import grammar_trials as trials_module
from engine.sampling.grammar_process import TokenTexts
from engine.sampling.grammar_trials import LONG_AT_ONCE, GrammarTrials, Verdict
from engine.service import EngineService
from tests.engine.helpers.answers import Writer, grammar_of
from tests.engine.tools.test_service import tiny_service
from tests.support.workers import wait_until

PRIME = 99_999_989
LONG = 1000  # optional properties: many ticks, at which the kernel looks at limits of processor time
BYTES = TokenTexts([bytes([byte]) for byte in range(256)] + [b"<end>"], [256], [256])
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def multiple(of: int) -> str:
    return grammar_of({"type": "integer", "multipleOf": of})


def optional(count: int) -> str:
    return grammar_of({"properties": {f"p{i}": {"type": "string"} for i in range(count)}})


@pytest.fixture
def trials() -> Iterator[GrammarTrials]:
    made = GrammarTrials(lambda: BYTES)
    yield made
    made.close()


def no_check() -> None:
    pass


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def process_of(trials: GrammarTrials) -> int:
    assert trials._process
    return trials._process.pid


def test_what_was_found_out_once_needs_no_further_trial(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    costly, wrong, good = multiple(PRIME), "other: /a/", multiple(7)
    found = [trials.verdict(grammar, no_check) for grammar in (costly, wrong, good)]
    assert found[0] == Verdict(within_limits=False)
    assert found[1].error
    assert found[2] == Verdict()
    monkeypatch.setattr(trials, "_try", None)
    assert [trials.verdict(grammar, no_check) for grammar in (costly, wrong, good)] == found


def test_verdicts_are_forgotten_when_there_are_many(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials_module, "REMEMBERED", 3)
    for i in range(5):
        trials.verdict(f'start: "{i}"', no_check)
    assert len(trials._verdicts) == 3


def test_what_takes_long_but_not_too_long_is_held(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module, "SHORT_CPU_S", 0.001)
    monkeypatch.setattr(trials_module, "LONG_CPU_S", 20.0)
    assert writer.takes(optional(300), '{"p7": "a"}')


@pytest.mark.slow
def test_an_ordinary_schema_does_not_wait_for_costly_ones(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that take long, only LONG_AT_ONCE go on at a time; what is short passes them."""
    monkeypatch.setattr(trials_module, "LONG_CPU_S", 0.3)
    with ThreadPoolExecutor(6) as pool:
        schemas = ({"type": "integer", "multipleOf": PRIME, "title": str(i)} for i in range(6))
        costly = [pool.submit(writer.begin, grammar_of(schema)) for schema in schemas]
        for _ in range(3):
            assert writer.takes(grammar_of({"type": "object", "title": str(time.monotonic())}), "{}")
        assert not all(future.done() for future in costly)
        codes = {getattr(future.exception(), "code", None) for future in costly}
    assert codes == {"schema_too_complex"}


# Cancelling


class Given:
    """A service whose turns to take long are all taken, and a request that waits for one."""

    def __init__(self, service: EngineService, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trials_module, "SHORT_CPU_S", 0.001)
        self.service = service
        self.trials = service._engine._preparation._grammars._trials
        for _ in range(LONG_AT_ONCE):
            self.trials.begin_long(no_check)

    def submit(self, deadline: float | None = None) -> Future[Future[Completion]]:
        """Returns once the request waits."""
        sampling = SamplingParams(grammar=optional(LONG), max_tokens=5)
        request = Request(id="r", prompt="abc", raw=True, sampling=sampling, deadline=deadline)
        made: Future[Future[Completion]] = Future()
        threading.Thread(target=lambda: made.set_result(self.service.submit(request))).start()
        wait_until(lambda: "r" in self.service._preparing)
        return made


@pytest.fixture
def waiting(tiny_gguf: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Given]:
    service = tiny_service(tiny_gguf)
    yield Given(service, monkeypatch)
    service.close()


def test_a_request_is_cancelled_while_its_grammar_waits(waiting: Given) -> None:
    made = waiting.submit()
    assert waiting.service.cancel("r")
    result = made.result(timeout=10).result(timeout=10)
    assert (result.finish_reason, result.completion_tokens) == (FinishReason.CANCELLED, 0)
    assert result.prompt_tokens > 0
    assert not waiting.service.cancel("r")


def test_a_deadline_passes_while_a_grammar_waits(waiting: Given) -> None:
    made = waiting.submit(deadline=time.time() + 0.3)
    assert made.result(timeout=10).result(timeout=10).finish_reason is FinishReason.EXPIRED


def test_an_id_is_in_use_while_its_grammar_waits(waiting: Given) -> None:
    made = waiting.submit()
    request = Request(id="r", prompt="abc", raw=True, sampling=SamplingParams())
    error = waiting.service.submit(request).exception(timeout=10)
    assert isinstance(error, EngineError)
    assert error.code == "duplicate_request"
    for _ in range(LONG_AT_ONCE):
        waiting.trials.end_long()
    assert made.result(timeout=30).result(timeout=30).completion_tokens == 5


def test_a_service_closes_while_a_grammar_waits(waiting: Given) -> None:
    made = waiting.submit()
    waiting.service.close()
    assert isinstance(made.result(timeout=10).exception(timeout=10), EngineClosed)


class Unwanted(Exception):
    pass


@linux
def test_a_trial_ends_when_nobody_wants_it(trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take minutes."""
    monkeypatch.setattr(trials_module, "SHORT_CPU_S", 600.0)
    monkeypatch.setattr(trials_module, "HEAP_BYTES", 8 << 30)
    trials.verdict(multiple(7), no_check)
    program = process_of(trials)

    def check() -> None:
        if children(program):
            raise Unwanted

    with pytest.raises(Unwanted):
        trials.verdict(multiple(PRIME), check)
    wait_until(lambda: not children(program))


# Processes that fail


@linux
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.slow
def test_a_program_that_was_killed_or_hangs_is_replaced(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setattr(trials_module, "WALL_S", 3.0)
    trials.verdict(multiple(7), no_check)
    first = process_of(trials)
    os.kill(first, how)
    assert trials.verdict(multiple(11), no_check) == Verdict()
    assert process_of(trials) != first
    assert not Path(f"/proc/{first}").exists()


def test_a_program_that_does_not_start_fails_the_request_alone(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/bin/false")
        with pytest.raises(EngineError, match="does not start") as failed:
            trials.verdict(multiple(7), no_check)
        assert not isinstance(failed.value, RequestRefused)
    assert trials.verdict(multiple(7), no_check) == Verdict()


@linux
def test_where_no_thread_can_be_had_others_may_compile_later(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trials_module, "SHORT_CPU_S", 1e-9)  # every one takes long
    with monkeypatch.context() as patch:
        patch.setattr("engine.sampling.grammar.start_thread", none)
        for n in range(2 * trials_module.LONG_AT_ONCE):
            with pytest.raises(RuntimeError, match="thread"):
                writer.begin(optional(3 + n))
    writer.begin(optional(3))


@pytest.mark.slow
def test_the_program_ends_with_the_process_that_started_it() -> None:
    script = """
import time
from tests.engine.sampling.test_grammar_limits import BYTES, GrammarTrials, multiple, no_check, process_of
trials = GrammarTrials(lambda: BYTES)
trials.verdict(multiple(7), no_check)
print(process_of(trials), flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        program = Path(f"/proc/{int(parent.stdout.readline())}")
        assert program.exists()
        parent.kill()
    wait_until(lambda: not program.exists())
