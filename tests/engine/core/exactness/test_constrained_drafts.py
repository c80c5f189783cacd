"""Answers held to a grammar are the same with every kind of draft."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import jsonschema
import pytest

from engine import Completion, EngineConfig, FinishReason
from engine.base.request import Acceptance
from engine.core.draft_source import DraftSource
from engine.core.scheduler import FEW_ON_GPU as FEW
from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree, chain
from engine.speculative.controller import Speculation
from engine.speculative.grammar_source import GrammarSource
from engine.speculative.prompt_lookup import LookupSource
from engine.speculative.setup import Drafting
from tests.engine.helpers.answers import END
from tests.engine.helpers.constrained import PERSON, SAMPLERS, check, constrained, mixed
from tests.engine.helpers.drive import QUESTIONS, alone, close, completions, fresh, prompts, run, same
from tests.engine.helpers.known_drafts import Bushy
from tests.support.measuring.profiles import flat

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("together", [1, FEW, 20])
@pytest.mark.parametrize("seed", range(2))
def test_trees_change_no_constrained_answer_on_f32(tiny_gguf: str, seed: int, together: int) -> None:
    """Of so many requests at once; with more than a few, trees are cut to chains."""
    requests = mixed(prompts(20, seed=seed), *SAMPLERS, logit_bias={END: 8.0})
    reference = alone(tiny_gguf, requests)
    drafts = Bushy({n: (*c.tokens, END, END, 70) for n, c in reference.items()}, 300, seed)
    engine = fresh(tiny_gguf, drafts, slots=8, kv_cells=4096)
    engine.scheduler.few = FEW
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
            zip(("Ada", "Boole", "Church"), ("greedy", "warm", "nucleus"), strict=True)
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
