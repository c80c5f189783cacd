"""Drafts of every source at once change no answer, and whom the engine asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine import Decoding, EngineConfig, Request, RequestRefused
from engine.core.draft_source import DraftSource
from engine.core.engine import Engine
from engine.core.scheduler import FEW_ON_CPU, FEW_ON_GPU
from engine.core.sequence import SequenceState
from engine.core.token_tree import Tree, chain
from engine.llama.context import Hidden
from engine.llama.model import Model
from engine.speculative.controller import Speculation
from engine.speculative.latency_model import LatencyProfile
from engine.speculative.prompt_lookup import LookupSource
from engine.speculative.row_timer import largest_timed
from engine.speculative.setup import UNKNOWN, speculate
from tests.engine.helpers.drive import alone, completions, fresh, opened, request, run
from tests.engine.helpers.policy import STEEP
from tests.support.measuring.profiles import FixedProfile, flat


class Known(DraftSource):
    """Drafts what is known to come, or what is known not to; says what it was asked."""

    def __init__(
        self,
        name: str,
        outputs: dict[str, tuple[int, ...]],
        *,
        right: bool,
        needs_hidden: bool,
        path_probability: float = 0.9,
    ) -> None:
        self.name, self.needs_hidden = name, needs_hidden
        self._path_probability = path_probability
        self.asked: list[list[str]] = []
        self._outputs, self._right = outputs, right

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        self.asked.append([s.request.id for s in sequences])
        for s in sequences:
            assert not self.needs_hidden or s.hidden is not None
        return [self._one(s)[:limit] for s in sequences]

    def _one(self, s: SequenceState) -> Tree:
        done = len(s.output)
        tokens = self._outputs[s.request.id][done : done + 4]
        return chain((t if self._right else (t + 1) % 300 for t in tokens), self.name, self._path_probability)

    def force(
        self, sequences: Sequence[SequenceState], profile: LatencyProfile, rows: int, limit: int
    ) -> list[Tree]:
        return [self._one(s) if s.hidden is not None else [] for s in sequences]


def requests(decoding: Decoding = Decoding.AUTO, **sampling: object) -> list[Request]:
    texts = ["one two three one two", "Tell me a story", "abcabcabcabc", "the end of the end of the"]
    made = [request(str(i), text, max_tokens=60, **sampling) for i, text in enumerate(texts)]
    return [Request(id=r.id, prompt=r.prompt, raw=True, sampling=r.sampling, decoding=decoding) for r in made]


def speculating(
    model: str, profile: LatencyProfile, *sources: Known | LookupSource, forced: Known | None = None
) -> tuple[Engine, Speculation]:
    engine = fresh(model)
    speculation = Speculation(profile, sources, forced)
    engine.set_draft_source(speculation, speculation.names)
    return engine, speculation


@pytest.fixture
def reference(tiny_gguf: str) -> dict[str, tuple[int, ...]]:
    return {name: c.tokens for name, c in alone(tiny_gguf, requests()).items()}


@pytest.mark.usefixtures("no_time_passes")
@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3, "top_p": 0.9}, {"logprobs": 2}])
def test_output_is_the_same_with_every_source_at_once(
    tiny_gguf: str, sampling: dict[str, object], trees: bool
) -> None:
    """In a tree all that is drafted has a place, in a lane the likeliest alone."""
    expected = alone(tiny_gguf, requests(**sampling))
    known = {name: c.tokens for name, c in expected.items()}
    sure = 0.9 if trees else 0.95
    right = Known("right", known, right=True, needs_hidden=True, path_probability=sure)
    right.trees = trees
    wrong = Known("wrong", known, right=False, needs_hidden=False)
    engine, _ = speculating(tiny_gguf, flat(), LookupSource(), wrong, right)
    engine.scheduler.few = FEW_ON_GPU if trees else 0
    ended = completions(run(engine, requests(**sampling)))
    for name, c in expected.items():
        assert (ended[name].tokens, ended[name].finish_reason) == (c.tokens, c.finish_reason)
        assert ended[name].text == c.text
        for one, other in zip(ended[name].logprobs or (), c.logprobs or (), strict=True):
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    assert all(c.drafted["right"].accepted for c in ended.values())
    assert all(c.tokens_per_step > 1.5 for c in ended.values())
    assert not any(c.drafted.get("wrong") and c.drafted["wrong"].accepted for c in ended.values())


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("trees", [False, True])
def test_few_share_a_cache_where_drafts_branch_fewer_on_a_cpu(
    tiny_gguf: str, monkeypatch: pytest.MonkeyPatch, gpu: bool, trees: bool
) -> None:
    monkeypatch.setattr("engine.core.engine.on_gpu", lambda _: gpu)
    source = Known("any", {}, right=True, needs_hidden=False)
    source.trees = trees
    few = (FEW_ON_GPU if gpu else FEW_ON_CPU) if trees else 0
    assert Engine(EngineConfig(model=tiny_gguf), Model(tiny_gguf), source).scheduler.few == few
    engine = fresh(tiny_gguf, slots=2)
    engine.set_draft_source(source)
    assert engine.scheduler.few == few
    shared: list[int] = []
    known = [request(name, f"{name} one", max_tokens=20 + 20 * place) for place, name in enumerate("ab")]
    source._outputs = {one.id: () for one in known}
    run(
        engine,
        known,
        lambda _: shared.append(sum(s.layout is engine.layouts.shared for s in engine.scheduler.running)),
    )
    assert max(shared) == min(few, 2)


@pytest.mark.usefixtures("no_time_passes")
def test_on_a_steep_curve_nothing_is_verified(tiny_gguf: str, reference: dict[str, tuple[int, ...]]) -> None:
    """Unless it is sure: rows that cost as much as steps pay only when they are always right."""
    source = Known("right", reference, right=True, needs_hidden=False)
    engine, _ = speculating(tiny_gguf, FixedProfile(STEEP), source)
    ended = completions(run(engine, requests()))
    assert {name: c.tokens for name, c in ended.items()} == reference
    assert all(c.steps == c.completion_tokens and not c.drafted for c in ended.values())


def test_normal_requests_are_left_alone_beside_others(
    tiny_gguf: str, reference: dict[str, tuple[int, ...]]
) -> None:
    source = Known("right", reference, right=True, needs_hidden=False)
    engine, _ = speculating(tiny_gguf, flat(), source)
    mixed = [*requests(Decoding.NORMAL)[:2], *requests()[2:]]
    ended = completions(run(engine, mixed))
    assert {name: c.tokens for name, c in ended.items()} == reference
    assert [c.steps == c.completion_tokens for _, c in sorted(ended.items())] == [True, True, False, False]
    assert {name for asked in source.asked for name in asked} == {"2", "3"}


def test_medusa_drafts_every_step_however_little_it_pays(
    tiny_gguf: str, reference: dict[str, tuple[int, ...]]
) -> None:
    heads = Known("medusa", reference, right=False, needs_hidden=True)
    engine, speculation = speculating(tiny_gguf, LatencyProfile(STEEP), heads, forced=heads)
    ended = completions(run(engine, requests(Decoding.MEDUSA)))
    assert {name: c.tokens for name, c in ended.items()} == reference
    for c in ended.values():
        assert c.steps == c.completion_tokens
        assert c.drafted["medusa"].verified >= c.steps - 5
    assert not speculation.regret.paused, "forced drafts do not count against the budget"


def test_before_t_of_n_is_known_nobody_is_drafted_for_unasked(
    tiny_gguf: str, reference: dict[str, tuple[int, ...]]
) -> None:
    heads = Known("medusa", reference, right=True, needs_hidden=True)
    engine, speculation = speculating(tiny_gguf, LatencyProfile(UNKNOWN), forced=heads)
    engine.set_draft_source(speculation, ("medusa",))
    mixed = [*requests(Decoding.MEDUSA)[:2], *requests()[2:]]
    ended = completions(run(engine, mixed))
    assert {name: c.tokens for name, c in ended.items()} == reference
    assert [bool(c.drafted) for _, c in sorted(ended.items())] == [True, True, False, False]


class Watching(Known):
    """Notes the hidden state of each length it is asked at."""

    def __init__(self, outputs: dict[str, tuple[int, ...]], *, drafts: bool) -> None:
        super().__init__("watching", outputs, right=True, needs_hidden=True)
        self.states: dict[tuple[str, int], Hidden] = {}
        self._drafts = drafts

    def draft(self, sequences: Sequence[SequenceState], limit: int) -> list[Tree]:
        for s in sequences:
            if s.hidden is not None:
                self.states[s.request.id, s.length] = s.hidden
        return [self._one(s)[:limit] if self._drafts and s.hidden is not None else [] for s in sequences]


def test_the_hidden_state_is_that_of_the_last_accepted_token(
    tiny_gguf: str, reference: dict[str, tuple[int, ...]]
) -> None:
    plain, drafting = (Watching(reference, drafts=on) for on in (False, True))
    for source in (plain, drafting):
        engine = fresh(tiny_gguf, source)
        completions(run(engine, requests()))
    assert len(drafting.states) < len(plain.states) / 3, "most tokens came in runs of accepted ones"
    for place, state in drafting.states.items():
        np.testing.assert_allclose(state, plain.states[place], atol=1e-3)


def test_medusa_without_heads_is_refused(tiny_gguf: str) -> None:
    engine, _ = speculating(tiny_gguf, flat(), LookupSource())
    with pytest.raises(RequestRefused, match="needs draft heads") as refused:
        engine.encode(requests(Decoding.MEDUSA)[0])
    assert refused.value.code == "no_heads"
    assert refused.value.param == "decoding"


def test_a_cache_smaller_than_the_calls_is_timed_as_far_as_it_goes(
    tiny_gguf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = EngineConfig(model=tiny_gguf, slots=2, kv_cells=64, kv_type="f32")
    engine = opened(config)
    assert largest_timed(config) == 32
    speculate(engine, config)
    ended = completions(run(engine, [request("r", "abcabcabcabc", max_tokens=40)]))
    assert ended["r"].completion_tokens == 40
