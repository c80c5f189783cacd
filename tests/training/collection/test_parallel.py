"""Collecting in several processes: what becomes of one that is killed, and of more than there are prompts."""

from __future__ import annotations

import multiprocessing
import threading
import time
from ctypes import c_longlong
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from common.processor import usable_cores
from engine import ModelLoadError
from tests.support.tuned import constants, tune
from tests.training.conftest import options
from training.base.errors import CollectionError
from training.collection import parallel
from training.collection.parallel import collect_parts, collections_in
from training.collection.shards import IDENTITY, Collection

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")

SHARD_TOKENS = 2048  # the size of a shard is not the subject


def begin_tuned(counts: list[c_longlong]) -> None:
    """What a collecting process begins with, as parallel.py has it there."""
    tune()
    parallel._begin(counts)


@pytest.mark.slow
def test_a_killed_process_is_named_and_the_same_command_goes_on(
    tiny_gguf: str, prompts: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill() -> None:
        deadline = time.monotonic() + 60
        while not list(out.glob("part-1/shard-?????")) and time.monotonic() < deadline:
            time.sleep(0.05)
        max(multiprocessing.active_children(), key=lambda child: child.pid or 0).kill()  # the last started

    for name, value in constants({"training.collection.collect.SHARD_TOKENS": SHARD_TOKENS}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(parallel, "_begin", begin_tuned)
    out = tmp_path / "s"
    endless = options(tiny_gguf, prompts, out, tokens=10**8, slots=32)
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(CollectionError, match="was killed; the same command goes on"):
        collect_parts(endless, 2, quiet)
    killer.join()
    more = max(Collection(out / f"part-{k}").done()[1] for k in range(2)) + 100
    assert SHARD_TOKENS < more < 16384
    collect_parts(replace(endless, tokens=2 * more), 2, quiet)
    assert all(Collection(out / f"part-{k}").done()[1] >= more for k in range(2))


def test_a_model_that_cannot_be_loaded_is_told_from_other_failures(
    prompts: Path, tmp_path: Path, quiet: Console
) -> None:
    with pytest.raises(ModelLoadError, match=r"none\.gguf: no such file"):
        collect_parts(options(str(tmp_path / "none.gguf"), prompts, tmp_path / "s"), 2, quiet)


@pytest.mark.parametrize(("count", "folders"), [(1, ["s"]), (2, ["part-0", "part-1"])])
@pytest.mark.slow
def test_there_are_no_more_parts_than_prompts(
    tiny_gguf: str,
    tmp_path: Path,
    quiet: Console,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    folders: list[str],
) -> None:
    monkeypatch.setattr("training.collection.parallel.usable_cores", lambda: 3)
    (tmp_path / "p.txt").write_text("Name a tree.\nName a river.\n"[: 13 * count])
    for tokens in (60, 90):
        made = collect_parts(options(tiny_gguf, tmp_path / "p.txt", tmp_path / "s", tokens=tokens), 3, quiet)
        assert [folder.name for folder in made] == folders
        assert all(Collection(folder).done()[1] >= tokens // len(made) for folder in made)


def test_a_folder_of_parts_stands_for_them(tmp_path: Path) -> None:
    for name in ("one", "several/part-1", "several/part-0"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / IDENTITY).write_text("{}")
    one, several = tmp_path / "one", tmp_path / "several"
    assert collections_in([one, several]) == (one, several / "part-0", several / "part-1")
    with pytest.raises(CollectionError, match="holds no collected states"):
        collections_in([one, tmp_path / "none"])
