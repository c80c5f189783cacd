"""Collecting: the states are those that gave the tokens, and nothing is lost or done twice after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from engine import ModelLoadError
from engine.core.engine import Engine
from engine.core.sequence import SequenceState
from engine.medusa.model_rows import ModelRows
from tests.support.tuned import constants
from tests.training.conftest import options, said
from training.base.errors import CollectionError, PromptsError
from training.collection import shards
from training.collection.collect import collect
from training.collection.shards import Collection, Recorded

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SHARD_TOKENS = 1500
SMALL_SHARDS = (
    "from tests.support.tuned import tune; tune(); from training.collection.collect import main; main()"
)


def answers(folder: Path) -> list[Recorded]:
    return [answer for shard in Collection(folder).shards() for answer in shard]


def test_each_state_gives_its_token(tiny_gguf: str, states: Path) -> None:
    lm_head = ModelRows(tiny_gguf).lm_head()
    greedy = [a for a in answers(states) if not a.sampled]
    assert len(greedy) > 10
    for a in greedy:
        assert len(a.hidden) == len(a.output) > 0
        np.testing.assert_array_equal((a.hidden.astype(np.float32) @ lm_head.T).argmax(axis=1), a.output)


def test_sampled_answers_are_there_too(states: Path) -> None:
    first = [a.sampled for a in answers(states) if a.number < 40]
    assert 4 <= sum(first) <= 20, "three in ten"
    assert all(a.sampled for a in answers(states) if a.number >= 40), "further answers to the same prompts"


def test_answers_end_with_their_ending_token(
    tiny_gguf: str, prompts: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = 300
    monkeypatch.setattr("engine.llama.model.Model.ends_generation", lambda _, token: token >= common)
    collect(options(tiny_gguf, prompts, tmp_path / "s"), quiet)
    ended = [a for a in answers(tmp_path / "s") if (a.output >= common).any()]
    assert ended
    for a in ended:
        assert np.flatnonzero(a.output >= common).tolist() == [len(a.output) - 1]
        assert len(a.hidden) == len(a.output)


def test_an_interrupted_collection_goes_on(
    tiny_gguf: str, prompts: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = options(tiny_gguf, prompts, tmp_path / "s")
    step, count = Engine.step, 0

    def interrupted(engine: Engine) -> Any:
        nonlocal count
        count += 1
        if count == 40:
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collect(settings, quiet)
    before = Collection(tmp_path / "s").done()[1]
    assert 0 < before < 600
    assert collect(settings, quiet) >= 600
    assert f"going on: {before} of 600 tokens" in said(quiet)
    numbers = [a.number for a in answers(tmp_path / "s")]
    assert len(set(numbers)) == len(numbers), "nothing is done twice"


def test_an_interrupt_behind_the_rename_of_a_shard_writes_it_once(
    tiny_gguf: str, prompts: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_path, interrupts = shards.sync_path, 0

    def interrupted(path: Path) -> None:
        nonlocal interrupts
        sync_path(path)
        if list(path.glob("shard-?????")) and not interrupts:
            interrupts += 1
            raise KeyboardInterrupt

    monkeypatch.setattr("training.collection.collect.SHARD_TOKENS", 100)
    monkeypatch.setattr(shards, "sync_path", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collect(options(tiny_gguf, prompts, tmp_path / "s"), quiet)
    numbers = [a.number for a in answers(tmp_path / "s")]
    assert interrupts == 1
    assert numbers
    assert len(set(numbers)) == len(numbers)


def test_a_murdered_collection_goes_on(tiny_gguf: str, prompts: Path, tmp_path: Path, quiet: Console) -> None:
    out = tmp_path / "s"
    command = [sys.executable, "-c", SMALL_SHARDS, "--model", tiny_gguf, "--prompts", str(prompts)]
    command += ["--out", str(out), "--tokens", "100000000", "--max-tokens", "24", "--threads", "1"]
    command += ["--slots", "8", "--kv-cells", "4096"]
    env = os.environ | constants({"training.collection.collect.SHARD_TOKENS": SHARD_TOKENS})
    process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list(out.glob("shard-?????")) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = Collection(out).done()[1]
    assert before >= SHARD_TOKENS
    assert collect(options(tiny_gguf, prompts, out, tokens=before + 100), quiet) >= before + 100
    numbers = [a.number for a in answers(out)]
    assert len(set(numbers)) == len(numbers)


def test_prompts_that_can_never_run_are_left_out(tiny_gguf: str, tmp_path: Path, quiet: Console) -> None:
    (tmp_path / "long.txt").write_text("word " * 1000 + "\nshort\n")
    settings = options(tiny_gguf, tmp_path / "long.txt", tmp_path / "s", tokens=60)
    assert collect(settings, quiet) >= 60
    assert said(quiet).count("prompt 0 left out: ") == 1
    (tmp_path / "long.txt").write_text("word " * 1000)
    with pytest.raises(CollectionError, match="no prompt can be run"):
        collect(options(tiny_gguf, tmp_path / "long.txt", tmp_path / "t"), quiet)


def test_what_keeps_it_from_starting_is_named(
    tiny_gguf: str, prompts: Path, tmp_path: Path, quiet: Console
) -> None:
    with pytest.raises(PromptsError):
        collect(options(tiny_gguf, tmp_path / "none", tmp_path / "s"), quiet)
    with pytest.raises(ModelLoadError):
        collect(options(str(tmp_path / "none.gguf"), prompts, tmp_path / "s"), quiet)
    (tmp_path / "file").touch()
    with pytest.raises(CollectionError, match=r"cannot use the folder .*file/s: Not a directory"):
        collect(options(tiny_gguf, prompts, tmp_path / "file" / "s"), quiet)
    with pytest.raises(CollectionError, match="slots must be"):
        collect(options(tiny_gguf, prompts, tmp_path / "s", slots=0), quiet)


def test_a_failing_request_ends_the_run_and_keeps_what_is_done(
    tiny_gguf: str, prompts: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit, count = SequenceState.emit, 0

    def failing(sequence: SequenceState, *rest: Any) -> bool:
        nonlocal count
        count += 1
        if count == 400:
            raise CollectionError("no more")
        return emit(sequence, *rest)

    monkeypatch.setattr(SequenceState, "emit", failing)
    with pytest.raises(CollectionError, match="no more"):
        collect(options(tiny_gguf, prompts, tmp_path / "s"), quiet)
    assert 0 < Collection(tmp_path / "s").done()[1] < 400
