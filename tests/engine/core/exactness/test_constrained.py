"""Answers held to a grammar, end to end: valid, whole or said to be cut, and the same beside others."""

from __future__ import annotations

import gc
import json
import random
import weakref
from pathlib import Path

import pytest

from engine import FinishReason, Request, RequestRefused, response_grammar
from engine.core.engine import Engine
from engine.core.sequence import SequenceState
from engine.sampling.grammar import GrammarConstraint
from engine.speculative.controller import Speculation
from engine.speculative.grammar_source import GrammarSource
from tests.engine.helpers.answers import END, in_one_form
from tests.engine.helpers.constrained import PERSON, SAMPLERS, check, constrained, mixed
from tests.engine.helpers.drive import alone, break_decode, close, completions, fresh, prompts, request, run
from tests.engine.helpers.known_drafts import Bushy, Oracle
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.measuring.profiles import flat

pytestmark = pytest.mark.slow


def test_a_random_model_writes_what_is_valid(tiny_gguf: str) -> None:
    requests = mixed(prompts(40), *SAMPLERS, logit_bias={END: 8.0})
    results = completions(run(fresh(tiny_gguf, slots=8, kv_cells=4096), requests))
    assert check(requests, results) >= 13
    for name, reference in alone(tiny_gguf, requests).items():
        close(results[name], reference)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_random_model_writes_json_objects(tiny_gguf: str, temperature: float) -> None:
    grammar = response_grammar({"type": "json_object"})
    closing = dict.fromkeys((END, 3 + ord("}"), 3 + ord('"'), 3 + ord("]")), 6.0)
    requests = [
        request(
            f"r{i}",
            text,
            max_tokens=150,
            ignore_eos=False,
            grammar=grammar,
            temperature=temperature,
            logit_bias=closing,
            seed=i,
        )
        for i, text in enumerate(prompts(16))
    ]
    results = completions(run(fresh(tiny_gguf, slots=8, kv_cells=4096), requests))
    ended = [c for c in results.values() if c.finish_reason is FinishReason.STOP]
    assert len(ended) >= 4
    assert all(isinstance(json.loads(c.text), dict) and in_one_form(c.text) for c in ended)


@pytest.mark.parametrize("drafted", [False, True])
def test_an_answer_says_whether_it_is_whole(tiny_gguf: str, drafted: bool) -> None:
    """Cut after each number of tokens, whatever was accepted in its last step."""
    whole = alone(tiny_gguf, [constrained("whole", "cabbage", {"const": ["ab", 1]})])["whole"]
    assert whole.finish_reason is FinishReason.STOP
    count = len(whole.tokens)
    cut = [
        constrained(str(n), "cabbage", {"const": ["ab", 1]}, max_tokens=n, ignore_eos=ignore_eos)
        for n, ignore_eos in ((n, n % 2 > 0) for n in range(1, count + 3))
    ]
    free = request("free", "cabbage", max_tokens=3)
    stopped = constrained("stopped", "cabbage", {"const": ["ab", 1]}, stop_token_ids=(whole.tokens[-1],))
    drafts = Speculation(flat(), [GrammarSource()]) if drafted else None
    results = completions(run(fresh(tiny_gguf, drafts), [*cut, free, stopped]))
    assert {n: results[str(n)].complete for n in range(1, count + 3)} == {
        n: n >= count for n in range(1, count + 3)
    }
    assert results[str(count - 1)].finish_reason is FinishReason.LENGTH
    assert results["free"].complete is None
    assert results["stopped"].complete is False


def test_max_tokens_may_cut_an_answer(tiny_gguf: str) -> None:
    whole = alone(tiny_gguf, [constrained("r", "cabbage", PERSON)])["r"]
    assert len(whole.tokens) > 10
    cut = alone(tiny_gguf, [constrained("r", "cabbage", PERSON, max_tokens=7)])["r"]
    assert (cut.finish_reason, cut.tokens) == (FinishReason.LENGTH, whole.tokens[:7])
    assert cut.text == whole.text[: len(cut.text)]
    assert cut.complete is False


@pytest.mark.parametrize("drafted", [False, True])
def test_a_stop_string_cuts_where_it_would_without_a_grammar(tiny_gguf: str, drafted: bool) -> None:
    whole = alone(tiny_gguf, [constrained("r", "cabbage", PERSON)])["r"]
    assert '"age"' in whole.text
    r = constrained("r", "cabbage", PERSON, stop=('"age"',), logprobs=1)
    drafts = Oracle({"r": whole.tokens}) if drafted else None
    result = completions(run(fresh(tiny_gguf, drafts), [r]))["r"]
    assert result.finish_reason is FinishReason.STOP
    assert result.complete is False
    assert result.text == whole.text[: whole.text.index('"age"')]
    close(result, alone(tiny_gguf, [r])["r"])


def test_a_bias_moves_the_choice_among_what_is_allowed(tiny_gguf: str) -> None:
    """Even the strongest for a token that is refused, or against one that is needed."""
    bias = {3 + ord("x"): 100.0, 3 + ord("{"): -100.0}
    result = alone(tiny_gguf, [constrained("r", "cabbage", PERSON, logit_bias=bias)])["r"]
    assert result.text.startswith('{"name": "xxx')
    assert result.text.count("x") >= 12
    json.loads(result.text) if result.finish_reason is FinishReason.STOP else None


def test_without_an_end_the_answer_is_whole_and_the_rest_is_silence(tiny_gguf: str) -> None:
    r = constrained("r", "cabbage", {"const": [1, 2]}, ignore_eos=True, max_tokens=300)
    result = alone(tiny_gguf, [r])["r"]
    assert (json.loads(result.text), result.finish_reason) == ([1, 2], FinishReason.LENGTH)
    assert result.complete
    assert set(result.tokens[len(result.text) :]) == {END}


def test_logprobs_are_of_the_model_whatever_the_grammar(tiny_gguf: str) -> None:
    free = alone(tiny_gguf, [request("r", "cabbage", max_tokens=1, logprobs=5)])["r"]
    held = alone(tiny_gguf, [constrained("r", "cabbage", PERSON, logprobs=5)])["r"]
    assert free.logprobs
    assert held.logprobs
    assert held.logprobs[0].top == free.logprobs[0].top
    assert held.logprobs[0].piece == b"{"
    assert held.logprobs[0].logprob < free.logprobs[0].logprob


def test_failed_decodes_and_rewinds_leave_the_grammar_where_it_was(tiny_gguf: str) -> None:
    requests = mixed(prompts(16, seed=7), temperature=0.8, logit_bias={END: 8.0})
    reference = alone(tiny_gguf, requests)
    drafts = Bushy({n: c.tokens for n, c in reference.items()}, 300, 3)
    engine = fresh(tiny_gguf, drafts, slots=6, kv_cells=1500)
    failures = break_decode(engine, random.Random(5), 0.05)
    results = completions(run(engine, requests))
    assert len(failures) > 2
    for name in reference:
        close(results[name], reference[name])


def test_a_word_that_no_token_can_write_ends_the_request_alone(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", without=b"x")
    r = request("r", "cabbage", grammar='start: "ax"', ignore_eos=False)
    outcomes = run(fresh(model), [r, request("other", "bead")])
    assert getattr(outcomes.pop("r"), "code", None) == "grammar_dead_end"
    assert completions(outcomes)["other"].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("drafted", [False, True])
def test_a_grammar_too_complex_for_a_step_ends_the_request_alone(tiny_gguf: str, drafted: bool) -> None:
    schema = {"type": "string", "pattern": "^" + "a?" * 900 + "$"}
    r = constrained("r", "cabbage", schema, logit_bias={3 + ord("a"): 30.0})
    other = request("other", "bead", logprobs=0)
    plain = alone(tiny_gguf, [other])["other"]
    drafts = Oracle({"r": (3 + ord("a"),) * 90, "other": plain.tokens}) if drafted else None
    outcomes = run(fresh(tiny_gguf, drafts), [r, other])
    assert getattr(outcomes.pop("r"), "code", None) == "grammar_too_complex"
    close(completions(outcomes)["other"], plain)


def test_a_refused_grammar_is_refused_before_the_engine_sees_it(tiny_gguf: str) -> None:
    engine = fresh(tiny_gguf)
    with pytest.raises(RequestRefused) as refused:
        engine.prepare(request("r", "x", grammar="root ::= root"), 0.0)
    assert refused.value.param == "response_format"
    assert engine.idle


def test_a_constraint_goes_with_its_request(tiny_gguf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[GrammarConstraint]] = []
    prepare = Engine.prepare

    def noted(self: Engine, r: Request, arrived: float) -> SequenceState:
        sequence = prepare(self, r, arrived)
        made.append(weakref.ref(sequence.sampler._constraint))  # type: ignore[arg-type]
        return sequence

    monkeypatch.setattr(Engine, "prepare", noted)
    engine = fresh(tiny_gguf)
    run(engine, [constrained(f"r{i}", "cabbage", PERSON) for i in range(6)])
    gc.collect()
    assert len(made) == 6
    assert not any(one() for one in made)
