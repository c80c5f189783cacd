"""Answers of one or more collections as batches for training, read from shards on demand.

In memory there is an index of 40 bytes per answer; at most OPEN_SHARDS shards are mapped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from training.base.errors import CollectionError
from training.collection.shards import Collection, Recorded, Shard, States, Tokens, open_shard

LEAST_HELD_OUT = 10  # prompts; in a small collection up to HELD_OUT_LIMIT of all prompts
HELD_OUT_LIMIT = 0.25
HELD_OUT_SHARE = 0.03  # of the prompts; 30,000 of a million tokens give scores to half a percent
OPEN_SHARDS = 64  # a million tokens shuffled together; three file handles each, of the usual 1024

Index = NDArray[np.int64]


class Answer(NamedTuple):
    """One answer; output and hidden are views of files. hidden [output, width]: output[i] came from row i."""

    output: Tokens
    hidden: States
    sampled: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Complete answers, concatenated.

    hidden float16 [n, width] and tokens int32 [n]: each state and the token emitted from it. later int64
    [n, heads]: the row of the token that each head should predict from this state, -1 past the answer's end.
    """

    hidden: States
    tokens: Tokens
    later: NDArray[np.int64]


class Answers(Sequence[Answer]):
    """Answers in shards, which are opened on demand."""

    def __init__(self, shards: Shards, index: Index) -> None:
        """index [answers, 5]: shard, offset of its tokens, offset of its states, length, 1 if sampled."""
        self._shards, self._index = shards, index

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, at: int) -> Answer: ...

    @overload
    def __getitem__(self, at: slice) -> Answers: ...

    def __getitem__(self, at: int | slice) -> Answer | Answers:
        if isinstance(at, slice):
            return Answers(self._shards, self._index[at])
        number, token, state, length, sampled = self._index[at].tolist()
        shard = self._shards[number]
        return Answer(
            shard.tokens[token : token + length], shard.hidden[state : state + length], bool(sampled)
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of output tokens of each answer."""
        return self._index[:, 3]

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def spread(self, tokens: int) -> Answers:
        """Evenly spaced answers with about this many tokens in total; all answers if they have fewer."""
        return self[:: max(1, self.tokens // tokens)]

    def greedy(self) -> Answers:
        """The answers that were not sampled."""
        return Answers(self._shards, self._index[self._index[:, 4] == 0])

    def shuffled(self, order: Random) -> Iterator[int]:
        """Every index once: shuffles the shards, then the answers of each OPEN_SHARDS of them together."""
        shards = np.unique(self._index[:, 0]).tolist()
        order.shuffle(shards)
        for first in range(0, len(shards), OPEN_SHARDS):
            among = np.isin(self._index[:, 0], shards[first : first + OPEN_SHARDS])
            places = np.flatnonzero(among).tolist()
            order.shuffle(places)
            yield from places


class Shards:
    """Shards by number; the OPEN_SHARDS used last stay open."""

    def __init__(self) -> None:
        self._places: list[tuple[Path, int]] = []
        self._open = lru_cache(OPEN_SHARDS)(lambda number: open_shard(*self._places[number]))

    def add(self, path: Path, width: int) -> int:
        """Add a shard, and return its number."""
        self._places.append((path, width))
        return len(self._places) - 1

    def __getitem__(self, number: int) -> Shard:
        return self._open(number)


class Dataset:
    """Answers of several collections, split into training and held-out answers. Raises CollectionError.

    The split depends only on the prompt: all answers to one prompt are in the same part, in every collection
    and every run.
    """

    def __init__(self, folders: Iterable[Path], most_held_out: float = 1.0) -> None:
        """most_held_out: share of the prompts, if other trainings held out no more; usually more of few."""
        collections = [Collection(folder) for folder in folders]
        self.identities = [collection.identity for collection in collections]
        sizes = {(identity.width, identity.vocab_size) for identity in self.identities}
        if len(sizes) > 1:
            raise CollectionError(f"collections of different models: (width, vocabulary) {sorted(sizes)}")
        shards = Shards()
        rows: list[NDArray[np.int64]] = []
        sides: list[NDArray[np.float64]] = []
        for collection, identity in zip(collections, self.identities, strict=True):
            for path in collection.paths():
                number = shards.add(path, identity.width)
                rows.append(_index(number, shards[number]))
                sides.append(np.array([_fraction(answer) for answer in shards[number]]))
        index = np.concatenate([np.empty((0, 5), np.int64), *rows])
        fractions = np.concatenate([np.empty(0), *sides])
        prompts = len(np.unique(fractions))
        usual = max(HELD_OUT_SHARE, min(HELD_OUT_LIMIT, LEAST_HELD_OUT / max(prompts, 1)))
        self.share = share = min(most_held_out, usual)
        self.train = Answers(shards, index[fractions >= share])
        self.held_out = Answers(shards, index[fractions < share])
        if not len(self.train) or not len(self.held_out):
            raise CollectionError(
                f"{len(self.train)} answers to train on, {len(self.held_out)} held out: collect more"
            )
        self.width, self.vocab_size = sizes.pop()

    def describe(self) -> dict[str, object]:
        """A description of the data for the metadata of the heads."""
        return {
            "collections": [asdict(identity) for identity in self.identities],
            "held_out_share": self.share,
            "train_tokens": self.train.tokens,
            "held_out_tokens": self.held_out.tokens,
        }

    def frequencies(self) -> NDArray[np.int64]:
        """Number of occurrences of each token in the training answers, [vocab]."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for answer in self.train:
            counts += np.bincount(answer.output, minlength=self.vocab_size)
        return counts


def held_out_share(metadata: Mapping[str, str]) -> float:
    """Of all prompts, how many were held out from the training of heads with this metadata."""
    try:
        return float(json.loads(metadata["data"])["held_out_share"])
    except (KeyError, ValueError, TypeError):  # of an earlier version, or of others
        return HELD_OUT_SHARE


def draft_vocabulary(counts: NDArray[np.int64], size: int) -> Tokens:
    """Ids of the most frequent tokens, at most `size`, the most frequent first; only tokens that occur."""
    ranked = np.argsort(-counts, kind="stable")[:size]
    return ranked[counts[ranked] > 0].astype(np.int32)


def groups(answers: Answers, rows: int, order: Random) -> Iterator[list[int]]:
    """Indices of all answers once, shuffled, in groups of at least `rows` tokens."""
    lengths = answers.lengths
    chosen: list[int] = []
    size = 0
    for place in answers.shuffled(order):
        chosen.append(place)
        size += int(lengths[place])
        if size >= rows:
            yield chosen
            chosen, size = [], 0
    if chosen:
        yield chosen


def batch(answers: Sequence[Answer], heads: int) -> Batch:
    """Concatenate answers to a batch in memory."""
    lengths = np.array([len(a.output) for a in answers])
    ends = np.repeat(np.cumsum(lengths), lengths)[:, None]
    later = np.arange(lengths.sum())[:, None] + 1 + np.arange(heads)
    later[later >= ends] = -1
    return Batch(
        hidden=np.concatenate([a.hidden for a in answers]),
        tokens=np.concatenate([a.output for a in answers]),
        later=later,
    )


def _index(number: int, shard: Shard) -> Index:
    prompts, outputs, sampled = shard.sequences[:, 1:4].T
    tokens = np.cumsum(prompts + outputs) - outputs
    states = np.cumsum(outputs) - outputs
    return np.stack([np.full_like(tokens, number), tokens, states, outputs, sampled], axis=1)


def _fraction(answer: Recorded) -> float:
    """A number from 0 to 1 that depends only on the prompt."""
    digest = hashlib.sha256(np.ascontiguousarray(answer.prompt).tobytes()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
