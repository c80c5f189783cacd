"""Shards: whole or not there, and refused when damaged or of something else."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from training.base.errors import CollectionError
from training.collection.shards import Collection, Identity, Recorded

IDENTITY = Identity("m", "p", seed=0, max_tokens=8, width=4, vocab_size=10)


def answer(number: int, length: int, sampled: bool = False) -> Recorded:
    rng = np.random.default_rng(number)
    return Recorded(
        number,
        sampled,
        rng.integers(0, 10, 3, dtype=np.int32),
        rng.integers(0, 10, length, dtype=np.int32),
        rng.standard_normal((length, 4)).astype(np.float16),
    )


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """Two shards of three answers."""
    made = Collection(tmp_path / "states")
    made.begin(IDENTITY)
    made.write([answer(0, 5), answer(4, 1, sampled=True)])
    made.write([answer(2, 7)])
    made.close()
    return made


def test_what_was_written_is_read(collection: Collection) -> None:
    read = [a for shard in collection.shards() for a in shard]
    assert [(a.number, a.sampled) for a in read] == [(0, False), (4, True), (2, False)]
    for a in read:
        wrote = answer(a.number, len(a.output))
        for name in ("prompt", "output", "hidden"):
            np.testing.assert_array_equal(getattr(a, name), getattr(wrote, name))
    assert collection.done() == ({0, 4, 2}, 13)


def test_what_a_killed_process_left_half_written_is_gone(collection: Collection) -> None:
    (collection.folder / "shard-00002.part").mkdir()
    (collection.folder / "shard-00002.part" / "tokens.npy").write_bytes(b"half")
    (collection.folder / "model.gguf.part").touch()
    assert collection.done()[1] == 13
    again = Collection(collection.folder)
    again.begin(IDENTITY)
    assert not list(collection.folder.glob("*.part"))
    assert again.write([answer(9, 2)]).name == "shard-00002"
    assert again.done()[1] == 15
    again.close()


def test_going_on_with_other_settings_is_refused_with_both_values(collection: Collection) -> None:
    with pytest.raises(CollectionError, match="collected with max_tokens 8, not 9: name another folder"):
        Collection(collection.folder).begin(replace(IDENTITY, max_tokens=9))


def test_one_process_at_a_time(collection: Collection) -> None:
    collection.begin(IDENTITY)
    with pytest.raises(CollectionError, match="another process is collecting"):
        Collection(collection.folder).begin(IDENTITY)
    collection.close()
    Collection(collection.folder).begin(IDENTITY)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CollectionError, match="cannot use the folder"):
        Collection(tmp_path / "file" / "states").begin(IDENTITY)


def test_a_full_disk_at_the_first_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    begun = Collection(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(CollectionError, match=r"cannot use .*No space left"):
            begun.begin(IDENTITY)
    begun.close()
    Collection(tmp_path).begin(IDENTITY)


def test_the_same_answers_written_again_are_there_once(collection: Collection) -> None:
    assert collection.write([answer(2, 7)]).name == "shard-00001"
    assert collection.done() == ({0, 4, 2}, 13)
    assert collection.write([answer(2, 7), answer(3, 1)]).name == "shard-00002", "not the same"


def test_a_shard_that_cannot_be_written_is_named(collection: Collection) -> None:
    (collection.folder / "shard-00002.part").touch()
    with pytest.raises(CollectionError, match=r"cannot write .*shard-00002"):
        collection.write([answer(1, 1)])


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("tokens", None, "cannot be read"),
        ("hidden", np.zeros((6, 3), np.float16), "wrong shapes"),
        ("sequences", np.zeros((2, 3), np.int64), "wrong shapes"),
        ("hidden", np.zeros((5, 4), np.float16), "do not belong together"),
        ("tokens", np.zeros(5, np.int32), "do not belong together"),
        ("tokens", np.array([{}], dtype=object), "cannot be read"),
    ],
)
def test_a_damaged_shard_is_named(
    collection: Collection, name: str, array: np.ndarray | None, message: str
) -> None:
    path = collection.paths()[0] / f"{name}.npy"
    if array is None:
        path.write_bytes(path.read_bytes()[:100])
    else:
        np.save(path, array, allow_pickle=True)
    with pytest.raises(CollectionError, match=f"shard-00000.*{message}"):
        list(collection.shards())


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"width": 4})])
def test_a_damaged_or_missing_description_is_named(collection: Collection, content: str) -> None:
    (collection.folder / "collection.json").write_text(content)
    with pytest.raises(CollectionError, match=r"collection\.json cannot be read"):
        list(collection.shards())
    (collection.folder / "collection.json").unlink()
    with pytest.raises(CollectionError, match="holds no collected states"):
        collection.done()
