"""One training run: steps, evaluations on held-out answers, checkpoints."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from common.atomic_write import atomic_path
from engine.host.file_digest import sha256
from engine.medusa.layouts import first_line
from training.base.errors import TrainingError
from training.base.progress import Display, say
from training.collection.dataset import Answer, Batch, Dataset, batch, groups
from training.heads import heads_file
from training.heads.muon import Muon
from training.heads.network import DraftHeads, DraftLoss, Proposals
from training.heads.recipe import TrainOptions
from training.heads.scores import Scores, evaluate

EVALUATIONS_PER_EPOCH = 4  # on held-out answers
EVALUATION_TOKENS = 16384  # greedy held-out tokens of each evaluation
SAVE_STEPS = 100  # longest distance between checkpoints: a minute or two on two cores
MOMENTUM = 0.95  # of Muon, which needs half as many tokens as AdamW at its best learning rate
BIAS_LEARNING_RATE = 1e-3
EMBEDDING_SHARE = 0.5  # size of embeddings as inputs, relative to the states'
SCALE_ANSWERS = 100  # over which these sizes are measured
# Of the weights that training begins with, in the result: such a mean keeps more of what they were good at
# (M. Wortsman et al. 2021, https://arxiv.org/abs/2109.01903).
BEGIN_SHARE = 0.3


class Run:
    """One training run, from the start or from its checkpoint."""

    def __init__(
        self,
        options: TrainOptions,
        data: Dataset,
        vocabulary: NDArray[np.int32],
        rows: NDArray[np.float32],
        embeddings: NDArray[np.float32] | None = None,
    ) -> None:
        """vocabulary: token ids of `rows`, the lm_head's [vocabulary, width]. embeddings: of all tokens, for
        heads that see the path.
        """
        recipe = options.recipe
        self.recipe, self.vocabulary = recipe, vocabulary
        self._data = data
        self._device = find_device(options.device)
        self._lm_head = torch.from_numpy(rows).to(self._device, _fast_type(self._device))
        places = np.full(data.vocab_size, -1, dtype=np.int64)
        places[vocabulary] = np.arange(len(vocabulary))
        self._places = torch.from_numpy(places).to(self._device)
        self.network = self._network(embeddings).to(self._device)
        if options.begin:
            heads_file.read_into(self.network, options.begin)
        self.begin = sha256(options.begin) if options.begin else None
        matrices = [p for p in self.network.parameters() if p.dim() == 2]
        biases = [p for p in self.network.parameters() if p.dim() == 1]
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (
                Muon(
                    matrices,
                    momentum=MOMENTUM,
                    weight_decay=recipe.weight_decay,
                    dtype=_fast_type(self._device),
                ),
                recipe.learning_rate,
            ),
            (torch.optim.AdamW(biases, weight_decay=0.0), BIAS_LEARNING_RATE),
        ]
        self.steps = sum(1 for _ in self._groups())
        self._every = max(1, self.steps // recipe.epochs // EVALUATIONS_PER_EPOCH)
        self._sample = [_in_memory(answer) for answer in data.held_out.greedy().spread(EVALUATION_TOKENS)]
        self._checkpoint = options.work / "checkpoint.pt"
        self.step = 0
        self.best = (0.0, 0.0)  # tokens per step, then mean top-1
        self._best_weights = self._begun = _copy(self.network)
        self._since_best = 0
        identity = {"recipe": asdict(recipe), "data": data.describe(), "model_rows": rows.shape}
        self._identity = json.dumps(identity | {"begin": self.begin}, sort_keys=True)

    def _network(self, embeddings: NDArray[np.float32] | None) -> DraftHeads:
        sizes = self.recipe.heads, self.recipe.layers, self._data.width
        if embeddings is None:
            return DraftHeads(*sizes)
        answers = [self._data.train[i] for i in range(min(SCALE_ANSWERS, len(self._data.train)))]
        states = _root_mean_square(np.concatenate([answer.hidden for answer in answers]).astype(np.float32))
        tokens = _root_mean_square(embeddings[np.concatenate([answer.output for answer in answers])])
        table = torch.from_numpy(embeddings).to(self._device)
        return DraftHeads(*sizes, table, scale=EMBEDDING_SHARE * states / tokens)

    def run(self, console: Console) -> None:
        """Train for all steps, or until `patience` evaluations in a row have not improved the score."""
        self._resume(console)
        if self.begin and not self.step:
            say(console, f"before training, held out: {self._score().text()}")
        losses: deque[float] = deque(maxlen=self._every)
        with Display(console, "steps", self.steps, self.step) as display:
            for places in islice(self._groups(), self.step, None):
                if self._since_best >= self.recipe.patience:
                    display.say(f"no better in {self.recipe.patience} evaluations: stopped early")
                    break
                losses.append(self._learn(batch([self._data.train[i] for i in places], self.recipe.heads)))
                self.step += 1
                display.update(self.step, f"loss {np.mean(losses):.3f}")
                evaluating = self.step % self._every == 0 or self.step == self.steps
                if evaluating:
                    scores = self._evaluate()
                    display.say(
                        f"step {self.step}/{self.steps}, loss {np.mean(losses):.3f}, "
                        f"held out: {scores.text()}"
                    )
                if evaluating or self.step % SAVE_STEPS == 0:
                    self._save()
        self.network.load_state_dict(self._best_weights if self.begin is None else self._mean(console))

    def _mean(self, console: Console) -> dict[str, Tensor]:
        """Of the best weights and of those that training began with; the latter if the mean is worse."""
        best = self._best_weights
        mean = {name: weight.lerp(self._begun[name], BEGIN_SHARE) for name, weight in best.items()}
        scores = {}
        for name, weights in (("mean", mean), ("begun", self._begun)):
            self.network.load_state_dict(weights)
            scores[name] = self._score()
        say(console, f"their mean with the heads before, held out: {scores['mean'].text()}")
        if scores["mean"].tokens and scores["mean"].tokens_per_step < scores["begun"].tokens_per_step:
            say(console, "training has not improved the heads: they stay as they were")
            return self._begun
        return mean

    def _groups(self) -> Iterator[list[int]]:
        """The indices of each step's answers, always in the same order."""
        for epoch in range(self.recipe.epochs):
            yield from groups(self._data.train, self.recipe.rows, Random(f"{self.recipe.seed}/{epoch}"))

    def _learn(self, given: Batch) -> float:
        """Run one step; return the loss before it, the mean over the heads."""
        rate = _schedule(self.step / self.steps, self.recipe.warm_up)
        for optimizer, highest in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = highest * rate
        hidden = torch.from_numpy(given.hidden).to(self._device).float()
        ids = torch.from_numpy(given.tokens).to(self._device).long()
        tokens = self._places[ids]
        later = torch.from_numpy(given.later).to(self._device)
        soft = self.recipe.soft
        wanted = self._wanted(hidden) if soft else None
        total = 0.0
        for number in range(self.recipe.heads):
            places = (later[:, number] >= 0).nonzero()[:, 0]
            if not len(places):
                continue
            answers = later[places, number]
            aim = None if wanted is None else wanted[answers]
            path = ids[torch.cat([places[:, None], later[places, :number]], dim=1)]
            states = self.network.run(number, hidden[places], path)
            loss = DraftLoss.apply(states, self._lm_head, tokens[answers], aim, soft)
            loss.backward()
            total += float(loss.detach())
        for optimizer, _ in self._optimizers:
            optimizer.step()
        return total / self.recipe.heads

    @torch.no_grad()
    def _wanted(self, hidden: Tensor) -> Tensor:
        """The model's own next-token probabilities at each state, over the draft vocabulary."""
        return (hidden.to(self._lm_head.dtype) @ self._lm_head.T).softmax(dim=-1)

    def _evaluate(self) -> Scores:
        """Score a sample of the held-out answers, and keep the weights if they are the best so far.

        Without any answer to score, the last weights are kept, and training does not stop early.
        """
        scores = self._score()
        self._since_best += 1
        found = (scores.tokens_per_step, scores.mean_top1)
        if found > self.best or not scores.tokens:
            self.best, self._since_best = found, 0
            self._best_weights = _copy(self.network)
        return scores

    def _score(self) -> Scores:
        return evaluate(self.proposals(), self._sample)

    def proposals(self) -> Proposals:
        """What the heads propose, with the weights that they have now."""
        return Proposals(self.network, self._lm_head, self.vocabulary)

    # The checkpoint

    def _save(self) -> None:
        state = {
            "identity": self._identity,
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in self._optimizers],
            "best_weights": self._best_weights,
            "numbers": {"step": self.step, "best": self.best, "since_best": self._since_best},
        }
        try:
            self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(self._checkpoint, durable=False) as part:
                torch.save(state, part)
        except (OSError, RuntimeError) as error:  # torch raises both for a full disk
            raise TrainingError(f"cannot write {self._checkpoint}: {error}") from error

    def _resume(self, console: Console) -> None:
        if not self._checkpoint.exists():
            return
        try:
            state: dict[str, Any] = torch.load(self._checkpoint, map_location=self._device, weights_only=True)
            identity = state["identity"]
        except Exception as error:  # a damaged file may raise any type
            say(console, f"training starts over: {self._checkpoint} cannot be read: {first_line(error)}")
            return
        if identity != self._identity:
            say(console, f"training starts over: {self._checkpoint} is of another recipe or other data")
            return
        self.network.load_state_dict(state["network"])
        for (optimizer, _), kept in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self._best_weights = state["best_weights"]
        numbers = state["numbers"]
        self.step, self.best, self._since_best = numbers["step"], numbers["best"], numbers["since_best"]
        say(console, f"going on at step {self.step} of {self.steps}")


def _schedule(done: float, warm_up: float) -> float:
    """Factor of the learning rate after this share of all steps: linear warm-up, then cosine decay to 0."""
    if done < warm_up:
        return done / warm_up
    return 0.5 * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up)))


def find_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise TrainingError(f"no device {name}: {str(error).splitlines()[0]}") from error
    return device


def _fast_type(device: torch.device) -> torch.dtype:
    """The type for products of matrices. On CPUs bf16 is twice as fast with native support, and 40 times
    slower without it.
    """
    able = torch.cpu.get_capabilities()
    native = any(able.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.bfloat16 if device.type != "cpu" or native else torch.float32


def _root_mean_square(values: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


def _in_memory(answer: Answer) -> Answer:
    return Answer(answer.output.copy(), answer.hidden.copy(), answer.sampled)


def _copy(network: DraftHeads) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
