"""Batches: every head's token is the right one, none reaches past its answer, held-out prompts stay out."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from training.base.errors import CollectionError
from training.collection.dataset import HELD_OUT_SHARE, Answer, Dataset, batch, draft_vocabulary, groups
from training.collection.shards import Collection, Identity, Recorded


def answer(*tokens: int) -> Answer:
    return Answer(np.array(tokens, np.int32), np.array([[t] for t in tokens], np.float16), False)


def collection(folder: Path, prompts: int, width: int = 4, sampled_from: int = 10**9) -> Path:
    made = Collection(folder)
    made.begin(Identity("m", "p", 0, 8, width, 100))
    for start in range(0, prompts, 50):
        made.write(
            [
                Recorded(
                    n,
                    n >= sampled_from,
                    np.array([n, n + 1], np.int32),
                    np.array([n % 100] * 3, np.int32),
                    np.zeros((3, width), np.float16),
                )
                for n in range(start, min(start + 50, prompts))
            ]
        )
    made.close()
    return folder


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_later_names_the_row_of_each_heads_token() -> None:
    made = batch([answer(5, 6, 7, 8), answer(9), answer(1, 2)], heads=3)
    assert made.tokens.tolist() == made.hidden[:, 0].tolist() == [5, 6, 7, 8, 9, 1, 2]
    assert made.later.tolist() == [
        [1, 2, 3],
        [2, 3, -1],
        [3, -1, -1],
        [-1, -1, -1],
        [-1, -1, -1],
        [6, -1, -1],
        [-1, -1, -1],
    ]


def test_groups_hold_every_answer_once_in_an_order_of_the_seed(tmp_path: Path) -> None:
    answers = Dataset([collection(tmp_path / "one", 1000)]).train
    made = list(groups(answers, 20, Random(1)))
    assert sorted(place for group in made for place in group) == list(range(len(answers)))
    assert all(20 <= sum(len(answers[place].output) for place in group) < 23 for group in made[:-1])
    assert list(groups(answers, 20, Random(1))) == made
    assert list(groups(answers, 20, Random(2))) != made


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted by Linux alone")
def test_few_shards_are_open_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.collection.dataset.OPEN_SHARDS", 2)
    data = Dataset([collection(tmp_path / "one", 1000)])
    before = open_files()
    order = list(data.train.shuffled(Random(1)))
    assert sorted(order) == list(range(len(data.train)))
    assert order != sorted(order)
    for group in groups(data.train, 30, Random(1)):
        batch([data.train[place] for place in group], 2)
        assert open_files() <= before + 3 * 2


def test_a_spread_part_is_of_all_answers(tmp_path: Path) -> None:
    train = Dataset([collection(tmp_path / "one", 1000, sampled_from=400)]).train
    assert train.tokens == 3 * len(train) == 3 * len(train.spread(10**9))
    greedy = [a for a in train if not a.sampled]
    assert len(train.greedy()) == len(greedy)
    assert all(not a.sampled for a in train.greedy())
    part = train.spread(300)
    assert 300 <= part.tokens < 400
    assert {a.sampled for a in part} == {True, False}


def test_the_prompt_decides_the_side(tmp_path: Path) -> None:
    one = Dataset([collection(tmp_path / "one", 1000)])
    both = Dataset([tmp_path / "one", collection(tmp_path / "two", 1200)])
    assert 10 < len(one.held_out) < 60
    held_out = {a.output[0] for a in both.held_out}
    assert {a.output[0] for a in one.held_out} <= held_out
    assert len(one.train) + len(one.held_out) == 1000
    assert both.describe()["train_tokens"] == both.train.tokens == 3 * len(both.train)


def test_the_draft_vocabulary_is_ranked_by_frequency() -> None:
    counts = np.array([0, 5, 9, 5, 0, 1])
    assert draft_vocabulary(counts, 3).tolist() == [2, 1, 3]
    assert draft_vocabulary(counts, 100).tolist() == [2, 1, 3, 5]


def test_frequencies_are_of_training_answers_alone(tmp_path: Path) -> None:
    data = Dataset([collection(tmp_path / "one", 100)])
    counts = data.frequencies()
    assert counts.sum() == data.train.tokens
    for a in data.held_out:
        assert counts[a.output[0]] == 0


def test_collections_of_two_models_are_refused(tmp_path: Path) -> None:
    folders = [collection(tmp_path / "one", 100), collection(tmp_path / "two", 100, width=5)]
    with pytest.raises(CollectionError, match=r"different models.*\(4, 100\), \(5, 100\)"):
        Dataset(folders)


def test_too_little_to_train_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="collect more"):
        Dataset([collection(tmp_path / "one", 1)])


def test_the_share_of_held_out_prompts_can_be_that_of_another_training(tmp_path: Path) -> None:
    """A small collection holds out more, of which a larger training has seen some."""
    folder = collection(tmp_path / "one", 200)
    few = Dataset([folder], most_held_out=HELD_OUT_SHARE)
    assert few.describe()["held_out_share"] == HELD_OUT_SHARE
    usual = Dataset([folder])
    assert {a.output[0] for a in few.held_out} < {a.output[0] for a in usual.held_out}
