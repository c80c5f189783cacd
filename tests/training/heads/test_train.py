"""Training: heads learn what can be learnt, whatever breaks it off, and the file holds what was learnt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from engine.host.file_digest import sha256

torch = pytest.importorskip("torch", reason="the extra medusa is not installed")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from engine.medusa.calibration import Calibration  # noqa: E402
from engine.medusa.loader import load_heads  # noqa: E402
from engine.medusa.model_rows import ModelRows  # noqa: E402
from engine.medusa.weights import HeadWeights  # noqa: E402
from tests.engine.helpers.tiny import VOCAB, WIDTH  # noqa: E402
from tests.training.conftest import said  # noqa: E402
from tests.training.heads.conftest import SMALL, options  # noqa: E402
from training.base.errors import TrainingError  # noqa: E402
from training.collection.dataset import HELD_OUT_SHARE, Answer, Dataset, batch  # noqa: E402
from training.heads import training_loop  # noqa: E402
from training.heads.heads_file import metadata  # noqa: E402
from training.heads.muon import Muon, orthogonal  # noqa: E402
from training.heads.network import DraftHeads, DraftLoss, Proposals  # noqa: E402
from training.heads.recipe import Kind, Recipe, TrainOptions  # noqa: E402
from training.heads.scores import Scores, evaluate  # noqa: E402
from training.heads.train import check, train  # noqa: E402
from training.heads.training_loop import Run  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Listed(list[Answer]):
    """Answers in memory, with what training asks of those in shards."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(answer.output) for answer in self])

    def greedy(self) -> Listed:
        return self

    def spread(self, tokens: int) -> Listed:
        return self

    def shuffled(self, order: Random) -> list[int]:
        return order.sample(range(len(self)), len(self))


class Cycle:
    """A world of 32 tokens that follow each other in a circle; a state is the row of the token it gave."""

    scale = 2.0  # of logits

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.rows = (rng.standard_normal((32, 16)) * self.scale).astype(np.float32)
        self.vocabulary = np.arange(32, dtype=np.int32)
        self.width, self.vocab_size = 16, 40
        order = rng.permutation(32)
        self.train = Listed(self._answer(order, start) for start in range(24))
        self.held_out = Listed(self._answer(order, start) for start in range(24, 32))

    def _answer(self, order: NDArray[np.int64], start: int) -> Answer:
        output = np.tile(order, 3)[start : start + 40].astype(np.int32)
        return Answer(output, self.rows[output].astype(np.float16), False)

    def describe(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize(
    ("soft", "layers"),
    [(0.5, 2), *(pytest.param(soft, 1, marks=pytest.mark.thorough) for soft in (0.0, 1.0))],
)
def test_heads_learn_a_circle(tmp_path: Path, quiet: Console, soft: float, layers: int) -> None:
    world: Any = Cycle()
    recipe = Recipe(heads=3, layers=layers, epochs=150, rows=320, learning_rate=0.05, soft=soft, patience=99)
    run = Run(TrainOptions("", (), tmp_path, tmp_path, recipe, "cpu"), world, world.vocabulary, world.rows)
    run.run(quiet)
    lm_head = torch.from_numpy(world.rows).bfloat16()
    scores = evaluate(Proposals(run.network, lm_head, world.vocabulary), world.held_out)
    assert scores.tokens_per_step > 3.3
    assert min(scores.top1) > 0.7


class Fork(Cycle):
    """From each state either of two tokens may come, by chance; each is followed by a token of its own."""

    scale = 0.7  # where a chance of a half can be said

    def _answer(self, order: NDArray[np.int64], start: int) -> Answer:
        rng = np.random.default_rng(start)
        branch = rng.integers(0, 2, 14)
        output = np.ravel([[order[0], order[1 + b], order[3 + b]] for b in branch]).astype(np.int32)
        given = np.ravel([[order[0], order[1], order[3 + b]] for b in branch])
        return Answer(output, self.rows[given].astype(np.float16), False)


@pytest.mark.parametrize(("kind", "share"), [(Kind.HYDRA, 1.0), (Kind.MEDUSA, 0.5)])
def test_what_depends_on_a_token_drawn_by_chance_is_known_to_heads_that_see_it(
    tmp_path: Path, kind: Kind, share: float
) -> None:
    """The state that gives the drawn token is the same whichever it was: the first head tells by its
    embedding, and the second one, asked a token earlier, by the path."""
    world: Any = Fork()
    recipe = Recipe(kind=kind, heads=2, layers=2, epochs=100, rows=320)
    embeddings = np.random.default_rng(1).standard_normal((40, 16)).astype(np.float32)
    given = embeddings if kind is Kind.HYDRA else None
    where = TrainOptions("", (), tmp_path, tmp_path, recipe, "cpu")
    run = Run(where, world, world.vocabulary, world.rows, given)
    for step, places in enumerate(run._groups()):
        run.step = step
        run._learn(batch([world.train[i] for i in places], 2))
    heads = Proposals(run.network, torch.from_numpy(world.rows), world.vocabulary)
    drawn = []
    for answer in world.held_out:
        path = answer.output[np.minimum(np.arange(42)[:, None] + np.arange(2), 41)]
        tokens, _ = heads.propose(answer.hidden.astype(np.float32), 2, 1, path=path)
        drawn += (tokens[1:-1:3, 0, 0] == answer.output[2::3][: len(tokens[1:-1:3])]).tolist()
        drawn += (tokens[0:-2:3, 1, 0] == answer.output[2::3][: len(tokens[0:-2:3])]).tolist()
    assert np.mean(drawn) == pytest.approx(share, abs=0.0 if share == 1 else 0.2)


def test_written_weights_are_for_embeddings_as_they_are() -> None:
    embeddings = torch.randn(9, 8)
    scaled = DraftHeads(2, 1, 8, embeddings, scale=0.25)
    for parameter in scaled.parameters():
        torch.nn.init.normal_(parameter)
    plain = DraftHeads(2, 1, 8, embeddings)
    plain.load_state_dict(scaled.weights())
    states, path = torch.randn(5, 8), torch.randint(9, (5, 2))
    for head in range(2):
        ours = plain.run(head, states, path[:, : head + 1])
        assert torch.allclose(ours, scaled.run(head, states, path[:, : head + 1]), atol=0.05)


@pytest.mark.parametrize("shape", [(6, 6), (6, 15), (15, 6)])
def test_muon_steps_as_torchs_does(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), [torch.randn(shape) for _ in range(3)]
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    own = Muon([ours], momentum=0.95, weight_decay=0.1, dtype=torch.bfloat16)
    reference = torch.optim.Muon([theirs], momentum=0.95, weight_decay=0.1)
    for optimizer, parameter in ((own, ours), (reference, theirs)):
        for group in optimizer.param_groups:
            group["lr"] = 0.05
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
    assert not torch.allclose(ours, start, atol=0.01)
    assert torch.allclose(ours, theirs, atol=1e-3)


def test_directions_in_32_bits_are_nearly_orthogonal() -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(20, 50)))
    assert 0.6 < float(values.min()) < float(values.max()) < 1.3


@pytest.mark.parametrize(("length", "patience"), [(3, 99), (1, 1), (0, 1)])
def test_held_out_answers_too_short_for_a_step_still_choose_weights(
    tmp_path: Path, quiet: Console, length: int, patience: int
) -> None:
    world: Any = Cycle()
    whole = world.held_out
    world.held_out = Listed(Answer(a.output[:length], a.hidden[:length], False) for a in whole if length)
    recipe = Recipe(heads=3, epochs=40, rows=320, patience=patience)
    run = Run(TrainOptions("", (), tmp_path, tmp_path, recipe, "cpu"), world, world.vocabulary, world.rows)
    run.run(quiet)
    scores = evaluate(Proposals(run.network, torch.from_numpy(world.rows), world.vocabulary), whole)
    assert min(scores.top1) > 0.5
    if length < 2:
        assert run.step == run.steps, "nothing can be known to get no better"
        assert "held out: no greedy answer to score" in said(quiet)


def test_untrained_heads_say_what_the_state_says() -> None:
    network, hidden = DraftHeads(2, 3, 8), torch.randn(5, 8)
    for head in range(2):
        assert torch.equal(network.run(head, hidden, torch.zeros(5, 1 + head).long()), hidden)
    seeing = DraftHeads(2, 3, 8, torch.randn(4, 8))
    for head in range(2):
        assert torch.equal(seeing.run(head, hidden, torch.zeros(5, 1 + head).long()), hidden)


@pytest.mark.parametrize("soft", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("with_wanted", [False, True])
@pytest.mark.parametrize("chunk", [1, 20, 1000])
def test_loss_and_gradient_are_those_of_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, soft: float, with_wanted: bool, chunk: int
) -> None:
    monkeypatch.setattr("training.heads.network.CHUNK_LOGITS", chunk)
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(7, 6, generator=generator, requires_grad=True)
    lm_head = torch.randn(10, 6, generator=generator)
    tokens = torch.tensor([3, 0, -1, 9, 9, -1, 2])
    wanted = torch.randn(7, 10, generator=generator).softmax(-1) if with_wanted else None
    own = DraftLoss.apply(states, lm_head, tokens, wanted, soft)
    (2 * own).backward()
    ours, states.grad = states.grad, None
    logits = states @ lm_head.T
    hard = torch.nn.functional.cross_entropy(logits, tokens, ignore_index=-1, reduction="sum")
    expected = hard / 7 if wanted is None else (1 - soft) * hard / 7
    if wanted is not None:
        expected = expected + soft * torch.nn.functional.cross_entropy(logits, wanted)
    (2 * expected).backward()
    assert torch.allclose(own, expected, atol=1e-5)
    assert ours is not None
    assert torch.allclose(ours, states.grad, atol=1e-5)


def test_tokens_outside_the_vocabulary_teach_nothing(tmp_path: Path) -> None:
    world: Any = Cycle()
    recipe = Recipe(heads=2, soft=0.0, warm_up=0.0, rows=64)
    vocabulary = np.arange(32, 40, dtype=np.int32)
    run = Run(TrainOptions("", (), tmp_path, tmp_path, recipe, "cpu"), world, vocabulary, world.rows[:8])
    assert run._learn(batch(world.train[:2], 2)) == 0
    assert not any(p.any() for p in run.network.parameters())


def test_the_file_holds_heads_the_engine_runs(
    tiny_gguf: str, states: Path, tmp_path: Path, quiet: Console
) -> None:
    scores = train(options(tiny_gguf, states, tmp_path), quiet)
    path = tmp_path / "heads.safetensors"

    rows = ModelRows(tiny_gguf)
    heads = load_heads(str(path), width=WIDTH, vocab_size=VOCAB, model_rows=rows)
    assert (heads.heads, heads.layers, heads.width) == (2, 2, WIDTH)
    data = Dataset([states])
    vocabulary = HeadWeights(str(path), WIDTH, VOCAB, rows).draft_vocabulary
    assert vocabulary is not None
    assert vocabulary[0] == data.frequencies().argmax()
    assert evaluate(heads, data.held_out) == scores
    found = metadata(path)
    assert found["base_model_sha256"] == data.identities[0].model_sha256
    assert json.loads(found["recipe"])["learning_rate"] == SMALL.learning_rate
    assert json.loads(found["scores"])["tokens_per_step"] == round(scores.tokens_per_step, 4)
    assert json.loads(found["data"])["train_tokens"] > 1000
    Calibration(2).start_from(found["calibration"])
    assert "held out: " in said(quiet)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["heads.safetensors", "work"]


def test_broken_off_it_ends_like_a_run_without_a_break(
    tiny_gguf: str, states: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = train(options(tiny_gguf, states, tmp_path / "a"), quiet)
    evaluate, count = Run._evaluate, 0

    def interrupted(run: Run) -> Scores:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return evaluate(run)

    monkeypatch.setattr(Run, "_evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(options(tiny_gguf, states, tmp_path / "b"), quiet)
    assert not (tmp_path / "b" / "heads.safetensors").exists()
    assert train(options(tiny_gguf, states, tmp_path / "b"), quiet) == whole
    assert "going on at step " in said(quiet)
    first, second = (tmp_path / name / "heads.safetensors" for name in "ab")
    assert metadata(first) == metadata(second)
    with safe_open(first, framework="pt") as a, safe_open(second, framework="pt") as b:
        assert all(torch.equal(a.get_tensor(key), b.get_tensor(key)) for key in a.keys())  # noqa: SIM118


def test_it_stops_when_nothing_gets_better(
    tiny_gguf: str, states: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.heads.training_loop.evaluate", lambda *_: Scores([0, 0], [0, 0], 1.0, 1))
    train(options(tiny_gguf, states, tmp_path, recipe=replace(SMALL, epochs=50, patience=2)), quiet)
    assert "no better in 2 evaluations: stopped early" in said(quiet)
    ended = json.loads(metadata(tmp_path / "heads.safetensors")["recipe"])["steps"]
    assert ended < 50
    train(options(tiny_gguf, states, tmp_path, recipe=replace(SMALL, epochs=50, patience=2)), quiet)
    again = json.loads(metadata(tmp_path / "heads.safetensors")["recipe"])["steps"]
    assert again == ended, "broken off behind the end of training, it trains no further"


def test_with_a_checkpoint_of_another_recipe_or_damaged_training_starts_over(
    tiny_gguf: str, states: Path, tmp_path: Path, quiet: Console
) -> None:
    first = train(options(tiny_gguf, states, tmp_path), quiet)
    train(options(tiny_gguf, states, tmp_path, recipe=replace(SMALL, learning_rate=0.5)), quiet)
    assert said(quiet).count("checkpoint.pt is of another recipe or other data") == 1
    (tmp_path / "work" / "checkpoint.pt").write_bytes(b"x")
    assert train(options(tiny_gguf, states, tmp_path), quiet) == first
    assert said(quiet).count("checkpoint.pt cannot be read: ") == 1
    assert said(quiet).count("training starts over: ") == 2
    assert "going on at step" not in said(quiet)


@pytest.mark.parametrize("kind", list(Kind))
def test_training_begins_with_the_heads_it_is_given(
    tiny_gguf: str,
    states: Path,
    tmp_path: Path,
    quiet: Console,
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = replace(SMALL, kind=kind, epochs=1)
    first = options(tiny_gguf, states, tmp_path, recipe=recipe)
    train(first, quiet)
    still = replace(recipe, learning_rate=1e-9)
    second = replace(
        first, recipe=still, begin=first.output, output=tmp_path / "second", work=tmp_path / "second.work"
    )
    check(second)
    train(second, quiet)
    with safe_open(first.output, framework="pt") as a, safe_open(second.output, framework="pt") as b:
        for key in list(a.keys()):
            if key.endswith("linear.weight"):
                torch.testing.assert_close(a.get_tensor(key), b.get_tensor(key), atol=1e-6, rtol=2**-7)
                assert a.get_tensor(key).abs().max() > 0.001, "something was learnt before"
    assert json.loads(metadata(second.output)["recipe"])["begin_sha256"] == sha256(first.output)
    assert json.loads(metadata(first.output)["recipe"])["begin_sha256"] is None
    shares = [json.loads(metadata(each.output)["data"])["held_out_share"] for each in (first, second)]
    assert shares[0] == shares[1] > HELD_OUT_SHARE
    learning = replace(second, recipe=replace(still, learning_rate=0.3), work=tmp_path / "third.work")
    blended, trained = (replace(learning, output=tmp_path / name) for name in ("blended", "trained"))
    train(blended, quiet)
    monkeypatch.setattr(training_loop, "BEGIN_SHARE", 0.0)
    train(trained, quiet)
    begun, end, between = (load_file(each.output) for each in (first, trained, blended))
    for key in [key for key in begun if key.endswith("linear.weight")]:
        away = (end[key] - begun[key]).abs()
        assert away.max() > 0.01, "it has learnt more"
        expected = 0.3 * begun[key].float() + 0.7 * end[key].float()
        torch.testing.assert_close(between[key].float(), expected, atol=1e-4, rtol=2**-6)
    for change in ({"heads": 3}, {"layers": 1}, {"kind": Kind.HYDRA if kind is Kind.MEDUSA else Kind.MEDUSA}):
        with pytest.raises(TrainingError, match="these heads differ in width, kind, number or layers"):
            check(replace(second, recipe=replace(still, **change)))


def test_training_that_makes_heads_worse_leaves_those_it_began_with(
    tiny_gguf: str, states: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = options(tiny_gguf, states, tmp_path)
    train(first, quiet)
    before: list[torch.Tensor] = []

    def nearness(heads: Proposals, *_: object) -> Scores:
        """On answers for which every step away from the first heads is a loss."""
        weights = torch.cat([weight.flatten() for weight in heads._network.state_dict().values()])
        before.append(weights.clone())
        return Scores([0.1, 0.1], [0.2, 0.2], 3 - float((weights - before[0]).norm()), 100)

    monkeypatch.setattr(training_loop, "evaluate", nearness)
    train(replace(first, begin=first.output, output=tmp_path / "second", work=tmp_path / "w2"), quiet)
    assert max(float((one - before[0]).norm()) for one in before) > 0.1, "it was trained"
    assert "before training, held out: 3.000" in said(quiet)
    begun, end = load_file(first.output), load_file(tmp_path / "second")
    for key in begun:
        torch.testing.assert_close(end[key].float(), begun[key].float(), atol=1e-4, rtol=2**-6)
