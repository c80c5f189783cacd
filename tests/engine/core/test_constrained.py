"""Answers held to a grammar, end to end: valid, and the same however they were run."""

from __future__ import annotations

import gc
import json
import random
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engine import Completion, EngineConfig, FinishReason, Request, RequestRefused, response_grammar
from engine.base.request import Acceptance
from engine.core.draft_source import DraftSource
from engine.core.engine import Engine
from engine.core.scheduler import FEW
from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree, chain
from engine.sampling.grammar import GrammarConstraint
from engine.speculative.controller import Speculation
from engine.speculative.grammar_source import GrammarSource
from engine.speculative.prompt_lookup import LookupSource
from engine.speculative.setup import Drafting
from tests.engine.core.test_exactness import QUESTIONS, Bushy, Oracle, break_decode, close, prompts
from tests.engine.helpers.answers import END, grammar_of, in_one_form
from tests.engine.helpers.drive import alone, completions, fresh, request, run, same
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.measuring.profiles import flat

pytestmark = pytest.mark.slow

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["friend", "foe", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
CHOICE = {
    "anyOf": [
        {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]},
        {"type": "array", "items": {"type": "number", "minimum": -5, "maximum": 5}, "maxItems": 4},
        {"type": "string", "pattern": "^[a-j]{2,5}(-[0-9]{2})?$"},
    ]
}
SCHEMAS = (PERSON, CHOICE)
SAMPLERS: dict[str, dict[str, object]] = {
    "greedy": {},
    "warm": {"temperature": 0.8, "seed": 11},
    "nucleus": {"temperature": 0.8, "top_p": 0.9, "seed": 12},
    "filtered": {"temperature": 1.2, "top_k": 40, "min_p": 0.02, "seed": 13},
    "penalised": {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.3, "seed": 14},
}


def constrained(name: str, prompt: str, schema: Any, **sampling: object) -> Request:
    values = {"max_tokens": 90, "ignore_eos": False, "grammar": grammar_of(schema), **sampling}
    return request(name, prompt, **values)


def mixed(texts: Sequence[str], *samplers: str, **sampling: object) -> list[Request]:
    """Every third one free, the others held to one of two schemas; with each sampler in its turn."""
    made = []
    for i, text in enumerate(texts):
        way = SAMPLERS[samplers[i % len(samplers)]] if samplers else {}
        own = {**way, **sampling, "seed": i, "logprobs": 2}
        if i % 3 == 2:
            made.append(request(f"r{i}", text, **{**own, "max_tokens": 24}))
        else:
            made.append(constrained(f"r{i}", text, SCHEMAS[i % 3], **own))
    return made


def check(requests: Sequence[Request], results: dict[str, Completion]) -> int:
    """Those held to a schema are valid if they came to an end; how many did."""
    ended = 0
    for r in requests:
        result = results[r.id]
        if r.sampling.grammar is None or result.finish_reason is not FinishReason.STOP:
            continue
        ended += 1
        schema = next(s for s in SCHEMAS if grammar_of(s) == r.sampling.grammar)
        value = json.loads(result.text)
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
        assert result.complete
        assert in_one_form(result.text)
        if isinstance(value, dict):
            order = schema.get("properties", ["yes"])
            assert [*value] == [*order], "nothing else, and in the order of the schema"
    return ended


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


@pytest.mark.parametrize("together", [1, FEW, 20])
@pytest.mark.parametrize("seed", range(2))
def test_trees_change_no_constrained_answer_on_f32(tiny_gguf: str, seed: int, together: int) -> None:
    """Of so many requests at once; with more than a few, trees are cut to chains."""
    requests = mixed(prompts(20, seed=seed), *SAMPLERS, logit_bias={END: 8.0})
    reference = alone(tiny_gguf, requests)
    drafts = Bushy({n: (*c.tokens, END, END, 70) for n, c in reference.items()}, 300, seed)
    engine = fresh(tiny_gguf, drafts, slots=8, kv_cells=4096)
    results: dict[str, Completion] = {}
    for first in range(0, len(requests), together):
        results |= completions(run(engine, requests[first : first + together]))
    for name in reference:
        close(results[name], reference[name])
    assert drafts.accepted > 50
    assert together > FEW or drafts.branched > 50


@pytest.mark.usefixtures("no_time_passes")
def test_the_default_model_answers_validly_with_and_without_speculation() -> None:
    """Batch-invariant, so equal to the bit: alone, in a batch, with drafts from lookup, with random trees."""
    texts = [f"{text} Answer as JSON." for text in QUESTIONS[:4]]
    requests = [replace(r, raw=False) for r in mixed(texts, "greedy", "nucleus", max_tokens=64)]
    reference = alone(None, requests, batch_invariant=True)
    assert check(requests, reference) >= 2
    known = {n: c.tokens for n, c in reference.items()}
    sources = (
        None,
        Speculation(flat(), [LookupSource()]),
        Speculation(flat(), [GrammarSource()]),
        Speculation(flat(), [GrammarSource(), LookupSource()]),
        Bushy(known, 49000, 5, nodes=5),
    )
    for drafts in sources:
        engine = fresh(None, drafts, slots=8, kv_cells=4096, batch_invariant=True)
        results = completions(run(engine, requests))
        for name in reference:
            same(results[name], reference[name])
        if isinstance(drafts, Bushy):
            assert drafts.accepted > 30
        elif drafts and "grammar" in drafts.names:
            verified, accepted = by_the_grammar(results)
            assert accepted > 0.6 * verified > 30, "whole drafts are verified, as of a request alone"


def by_the_grammar(results: dict[str, Completion]) -> tuple[int, int]:
    """Its draft tokens, verified and accepted."""
    drafted = [c.drafted["grammar"] for c in results.values() if "grammar" in c.drafted]
    return sum(d.verified for d in drafted), sum(d.accepted for d in drafted)


@pytest.mark.usefixtures("no_time_passes")
@pytest.mark.parametrize("slots", [1, 4, 16])
@pytest.mark.parametrize("beside", ["alone", "lookup", "trees"])
def test_drafts_of_the_grammar_change_no_answer_on_f32(tiny_gguf: str, slots: int, beside: str) -> None:
    """Sampled and greedy, beside free requests, and beside other sources whose trees it leads."""
    requests = mixed(prompts(20, seed=slots), *SAMPLERS, logit_bias={END: 8.0})
    reference = alone(tiny_gguf, requests)
    known = {n: (*c.tokens, END, END, 70) for n, c in reference.items()}
    others: dict[str, list[DraftSource]] = {
        "alone": [],
        "lookup": [LookupSource()],
        "trees": [Bushy(known, 300, slots), LookupSource()],
    }
    speculation = Speculation(flat(), [GrammarSource(), *others[beside]])
    results = completions(run(fresh(tiny_gguf, speculation, slots=slots, kv_cells=4096), requests))
    for name in reference:
        close(results[name], reference[name])
    verified, accepted = by_the_grammar(results)
    assert verified > accepted > 100
    assert not any("grammar" in results[r.id].drafted for r in requests if r.sampling.grammar is None)


@pytest.mark.usefixtures("no_time_passes")
def test_a_schema_is_drafted_for_without_a_setting() -> None:
    """By the default sources, on the quantised model: to the bit what plain decoding gives."""
    requests = [
        replace(constrained(f"r{i}", f"Describe {name} as JSON.", PERSON, **SAMPLERS[way]), raw=False)
        for i, (name, way) in enumerate(
            zip(("Ada", "Boole", "Church", "Dijkstra"), ("greedy", "warm", "nucleus", "greedy"), strict=True)
        )
    ]
    reference = alone(None, requests, batch_invariant=True)
    engine = fresh(None, slots=4, kv_cells=4096, batch_invariant=True)
    drafting = Drafting(engine.model, EngineConfig())
    drafting.start(engine, flat())
    assert engine.info.draft_sources == ("grammar", "lookup", "medusa")
    shares = []
    for _ in range(2):
        results = completions(run(engine, requests))
        for name in reference:
            same(results[name], reference[name])
        verified, accepted = by_the_grammar(results)
        shares.append(accepted / verified)
    assert 0.2 < shares[0] + 0.2 < shares[1], "it learns how the model writes what is forced"


class Refusable(DraftSource):
    """Drafts what was said, and a token that no grammar here allows."""

    def __init__(self, outputs: dict[str, tuple[int, ...]], wrong: int) -> None:
        self._outputs, self._wrong = outputs, wrong
        self.refused = 0

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        return [self._one(s)[:limit] for s in sequences]

    def _one(self, s: SequenceState) -> Tree:
        known = self._outputs[s.request.id][len(s.output) :][:2]
        return chain((*known, self._wrong), "refusable")

    def observe(self, sequence: SequenceState, tree: Tree, accepted: list[int]) -> None:
        self.refused += len(accepted) < len(tree)
        assert self._wrong not in [tree[i].token for i in accepted]


@pytest.mark.parametrize("acceptance", Acceptance)
def test_a_draft_that_the_grammar_refuses_costs_no_more_than_acceptance(
    tiny_gguf: str, acceptance: Acceptance
) -> None:
    """With typical acceptance a likely draft stands where another would be drawn: if it is allowed."""
    control = 1
    requests = [
        constrained(
            f"r{i}",
            text,
            PERSON,
            temperature=0.8,
            seed=i,
            acceptance=acceptance,
            logit_bias={control: 30.0, END: 8.0},
        )
        for i, text in enumerate(prompts(8))
    ]
    reference = alone(tiny_gguf, requests)
    drafts = Refusable({n: c.tokens for n, c in reference.items()}, control)
    results = completions(run(fresh(tiny_gguf, drafts, slots=4, kv_cells=4096), requests))
    assert drafts.refused > 50
    for r in requests:
        assert control not in results[r.id].tokens
        if acceptance is Acceptance.EXACT:
            same(results[r.id], reference[r.id])
        if results[r.id].finish_reason is FinishReason.STOP:
            jsonschema.validate(json.loads(results[r.id].text), PERSON)


class LikelyButWrong(DraftSource):
    """Drafts letters, typical of the model by its bias."""

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        return [chain([3 + ord("a"), 3 + ord("b")], "letters")[:limit] for _ in sequences]


def test_typical_drafts_are_taken_where_the_grammar_allows_them(tiny_gguf: str) -> None:
    requests = [
        constrained(
            f"r{i}",
            text,
            {"type": "string", "maxLength": 20},
            temperature=1.0,
            seed=i,
            acceptance=Acceptance.TYPICAL,
            logit_bias={3 + ord("a"): 9.0, 3 + ord("b"): 9.0},
        )
        for i, text in enumerate(prompts(6))
    ]
    results = completions(run(fresh(tiny_gguf, LikelyButWrong(), slots=4), requests))
    assert sum(c.drafted["letters"].accepted for c in results.values()) > 20
    for result in results.values():
        assert result.finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(result.text), {"type": "string", "maxLength": 20})


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
