"""docs/tutorials/vicuna.md: all its commands in order, on a small model in the same files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compiling.source import converter
from engine import (
    Completion,
    Decoding,
    EngineConfig,
    EngineService,
    FinishReason,
    Request,
    SamplingParams,
    load,
)
from engine.llama.model import Model
from engine.tools.memory_estimate import PROCESS_BYTES
from tests.compiling.helpers.newcomer import Newcomer, commands
from tests.compiling.helpers.small_hub import Repository, SmallHub
from tests.compiling.helpers.small_models import PADDED_VOCAB
from tests.compiling.helpers.small_vicuna import (
    END,
    HEADS,
    MODEL,
    PUBLISHED_HEADS,
    QUESTION,
    TOKENS,
    SmallVicuna,
    make,
)
from tests.support.servers import free_port
from tests.support.workers import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.thorough, pytest.mark.timeout(1200)]
PAGE = ROOT / "docs" / "tutorials" / "vicuna.md"
KEPT = 352  # half of the vocabulary's tokens, there and here
PORT = free_port()
RENAMED = {
    "(?<=--tokens )8192": str(KEPT),
    r"(?<=-)f16(?=\.gguf)": "f32",
    "(?<=127.0.0.1:)7860": str(PORT),
    "(?<= -o vicuna )(?=--types)": "--rounds 1 ",  # of three, which say nothing more here
}
BROKEN = "tokenizer.model"  # fetched before the weights are
WITHOUT_HEADS = {
    "org/missing": "no such repository on the hub",
    "org/no-heads": "a repository without heads: none of medusa_lm_head",
    "folder/heads.pt": "no such file or folder",
}
TRY = """
import json, sys
from cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""
Ended = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """The first try. kept: files that came whole: how many is the threads' affair that fetch them."""

    code: int
    shown: str
    kept: set[str]


@dataclass(frozen=True, slots=True)
class Followed:
    """What the page's commands have said and left. ended: by their words."""

    small: SmallVicuna
    folder: Path
    ended: dict[str, Ended]

    def of(self, name: str) -> list[Ended]:
        """Those of one command, as in "medusaq compile"."""
        return [ended for words, ended in self.ended.items() if words.startswith(name)]

    @property
    def gguf(self) -> Path:
        return self.folder / "vicuna" / "vicuna-7b-v1.3-f32.gguf"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallVicuna:
    return make(tmp_path_factory.mktemp("repositories"))


@pytest.fixture(scope="module")
def hub(small: SmallVicuna) -> Iterator[SmallHub]:
    served = SmallHub(small.repositories | {"org/no-heads": Repository({"config.json": b"{}"})})
    yield served
    served.stop()


@pytest.fixture(scope="module")
def newcomer(
    hub: SmallHub, converter_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Newcomer]:
    """On one core: threads that wait for each other over so small a model cost twice the time."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(usable)[os.getpid() % len(usable)]})
    person = Newcomer(tmp_path_factory.mktemp("newcomer"))
    person.env |= {
        converter.SETTING: str(converter_folder),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(person.folder / "hub"),
        "MEDUSAQ_PORT": str(PORT),
        "MEDUSAQ_FLOWER_PORT": str(free_port()),
        "MEDUSAQ_BATCH_INVARIANT": "1",
        "MEDUSAQ_WEIGHTS": "as_shipped",
    }
    person.env.pop("HF_HUB_OFFLINE", None)
    yield person
    os.sched_setaffinity(0, usable)
    person.close()


@pytest.fixture(scope="module")
def broken_off(small: SmallVicuna, hub: SmallHub, newcomer: Newcomer) -> BrokenOff:
    """The first command once installed, on a terminal: a file breaks off in its middle."""
    install, first = commands(PAGE, RENAMED)[:2]
    assert install[:2] == ["pip", "install"]
    newcomer.install(install[2])
    small.repositories[MODEL].cut.add(BROKEN)
    code, shown = newcomer.on_terminal(*first)
    small.repositories[MODEL].cut.clear()
    kept = set(hub.asked) - {BROKEN}
    hub.asked.clear()
    return BrokenOff(code, shown, kept)


@pytest.fixture(scope="module")
def followed(small: SmallVicuna, newcomer: Newcomer, broken_off: BrokenOff) -> Followed:
    assert broken_off.code
    ended, stack = {}, None
    for words in commands(PAGE, RENAMED)[1:]:
        if words[:2] == ["medusaq", "up"]:
            stack = newcomer.start(*words[1:])
            stack.wait_for("  gateway  ", 60)
        else:
            ended[" ".join(words)] = newcomer.run(*words)
    assert stack is not None
    stack.send(signal.SIGINT)
    assert stack.wait() == 0
    return Followed(small, newcomer.folder, ended)


@pytest.fixture(scope="module")
def worker(followed: Followed) -> Iterator[EngineService]:
    """The engine as a worker starts it, in single precision throughout."""
    config = EngineConfig(
        model=str(followed.gguf), heads=str(followed.folder / "vicuna-heads.safetensors"),
        chat_template="vicuna", kv_type="f32", slots=2, kv_cells=1024, threads=1,
    )  # fmt: skip
    service = load(config)
    yield service
    service.close()


def answer(worker: EngineService, decoding: Decoding, **sampling: object) -> Completion:
    params = SamplingParams(max_tokens=TOKENS, **sampling)  # type: ignore[arg-type]
    request = Request(id=decoding, sampling=params, prompt=QUESTION, decoding=decoding)
    return worker.submit(request).result(timeout=60)


# What the commands say and leave


def test_a_download_that_breaks_off_has_the_terminal_to_itself(broken_off: BrokenOff) -> None:
    shown = broken_off.shown
    assert broken_off.code == 1
    assert shown.startswith(f"fetching {MODEL}")
    assert BROKEN in shown, "the bar of the hub's client"
    assert f"error: {MODEL}: the download broke off, repeat to go on: " in shown
    assert "steps" not in shown, "a bar of ours between those of the hub's client"


def test_repeated_it_goes_on_and_is_compiled(
    followed: Followed, broken_off: BrokenOff, hub: SmallHub
) -> None:
    published = followed.small.repositories
    missing = published[MODEL].files.keys() - broken_off.kept
    assert missing >= {BROKEN, *(f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2))}
    assert sorted(hub.asked) == sorted([*missing, *published[HEADS].files])
    first = followed.of("medusaq compile")[0]
    assert f"fetching {MODEL}" in first.stderr
    assert "converting vicuna-7b-v1.3 to F32" in first.stderr
    table = [line.split("  ")[0] for line in first.stdout.splitlines()]
    assert table[1:4] == ["source (f32)", "q4_k_m", "q8_0"]
    assert table[-1].startswith("recommended: ")
    assert {path.name for path in (followed.folder / "vicuna").iterdir()} >= {
        followed.gguf.name, "vicuna-7b-v1.3.q4_k_m.gguf", "vicuna-7b-v1.3.q8_0.gguf", "report.html"
    }  # fmt: skip
    assert Model(str(followed.gguf), vocabulary_only=True).chat_template is None, "nobody makes one up"


def test_from_the_gguf_nothing_is_done_again(followed: Followed) -> None:
    first, again = followed.of("medusaq compile")
    assert (again.stdout, again.stderr) == (first.stdout, "")


def test_a_folder_with_the_same_files_is_that_checkpoint(followed: Followed, newcomer: Newcomer) -> None:
    [snapshot] = newcomer.folder.glob("hub/hub/models--lmsys--*/snapshots/*")
    shutil.copytree(snapshot, newcomer.folder / "vicuna-7b-v1.3")
    [first, _] = [words for words in followed.ended if words.startswith("medusaq compile")]
    ended = newcomer.run(*first.replace(MODEL, "./vicuna-7b-v1.3").split())
    assert (ended.stdout, ended.stderr) == (followed.ended[first].stdout, "")


def test_heads_are_sliced_and_exported(followed: Followed) -> None:
    assert followed.of("medusaq slice-heads")[0].stdout.startswith(
        f"vicuna-heads.safetensors: {PUBLISHED_HEADS} heads, {KEPT} of {PADDED_VOCAB} tokens, which are "
    )
    assert followed.of("medusaq export-heads")[0].stdout.startswith("vicuna-heads.onnx: ")


def test_the_served_answer_is_that_of_the_quantised_file(followed: Followed) -> None:
    [curl] = followed.of("curl")
    record: dict[str, Any] = json.loads(curl.stdout)
    assert (record["status"], record["model"]) == ("succeeded", "vicuna"), record
    assert record["request"]["model"] == "vicuna", "the page asks by name"
    config = EngineConfig(
        model=str(followed.folder / "vicuna" / "vicuna-7b-v1.3.q4_k_m.gguf"), weights="as_shipped",
        chat_template="vicuna", speculation=False, batch_invariant=True, slots=2, kv_cells=1024,
    )  # fmt: skip
    service = load(config)
    asked = record["request"]
    sampling = SamplingParams(max_tokens=asked["max_tokens"])
    done = service.submit(Request(id="r", sampling=sampling, prompt=asked["prompt"])).result(timeout=60)
    service.close()
    assert record["result"]["usage"]["prompt_tokens"] == done.prompt_tokens, "in Vicuna's own template"
    assert record["result"]["text"] == done.text


# What it answers


def test_the_template_gives_transformers_own_tokens(followed: Followed, worker: EngineService) -> None:
    request = Request(id="r", sampling=SamplingParams(max_tokens=1), prompt=QUESTION)
    assert worker._engine.encode(request).tolist() == followed.small.prompt
    done = answer(worker, Decoding.NORMAL, ignore_eos=True)
    assert done.prompt_tokens == len(followed.small.prompt)


def test_plain_and_drafted_answers_are_transformers_own(followed: Followed, worker: EngineService) -> None:
    plain = answer(worker, Decoding.NORMAL, ignore_eos=True)
    drafted = answer(worker, Decoding.MEDUSA, ignore_eos=True)
    assert list(plain.tokens) == followed.small.written
    assert list(drafted.tokens) == followed.small.written
    assert drafted.text == plain.text
    assert not plain.drafted
    assert len(set(followed.small.written)) > TOKENS // 4, "it repeats itself, and equality says little"
    heads = drafted.drafted["medusa"]
    assert heads.verified > heads.accepted > 0, "some of what they foresee was sliced away"


def test_an_answer_ends_at_its_control_token(followed: Followed, worker: EngineService) -> None:
    ends = followed.small.written.index(END)
    assert 8 < ends < TOKENS
    for decoding in (Decoding.NORMAL, Decoding.MEDUSA):
        done = answer(worker, decoding)
        assert done.finish_reason is FinishReason.STOP
        assert list(done.tokens) == followed.small.written[:ends]
        assert "</s>" not in done.text


# The page's figures, and names that lead nowhere


def test_the_pages_sizes_are_those_of_the_shapes() -> None:
    layers, width, feed, vocab, heads = 32, 4096, 11008, 32000, PUBLISHED_HEADS
    matrices = 2 * vocab * width + layers * (4 * width * width + 3 * width * feed)
    norms = (2 * layers + 1) * width  # stay in 32 bits
    of_heads, sliced = (heads * (rows * width + width * width + width) for rows in (vocab, 8192))
    # Q4_K_M: the lm_head, and of half of the layers attn_v and ffn_down, in Q6_K; all else in Q4_K
    finer = vocab * width + layers // 2 * (width * width + width * feed)
    cell = 2 * layers * width * 2
    q4_k_m, q8_0 = finer * 210 / 256 + (matrices - finer) * 144 / 256, matrices * 34 / 32
    weights, process = matrices + norms, PROCESS_BYTES
    download = 2 * weights + 2 * of_heads
    sizes = {
        "weights as PyTorch files": (2 * weights, "13.48 GB"),
        "published heads": (2 * of_heads, "1.48 GB"),
        "sliced heads": (2 * sliced, "0.50 GB"),
        "Q4_K_M": (q4_k_m, "4.08 GB"),
        "Q8_0": (q8_0, "7.16 GB"),
        "disk, all": (download + 2 * weights + q4_k_m + q8_0 + 2 * sliced + 4096 * vocab * 4, "41 GB"),
        "disk, to serve": (q4_k_m + 2 * sliced, "4.6 GB"),
        "cells": (8192 * cell, "4.29 GB"),
        "cells of long prompts": (2048 * cell, "1.07 GB"),
        "int8 heads": (sliced, "0.25 GB"),
        "memory to serve": (q4_k_m + (8192 + 2048) * cell + sliced + process, "9.8 GB"),
        "with 2,048 cells": (q4_k_m + (2048 + 2048) * cell + sliced + process, "6.6 GB"),
        "Q8_0 beyond Q4_K_M": (q8_0 - q4_k_m, "3.1 GB"),
        "memory to measure": (2 * weights + 4096 * cell + 3e8, "15.9 GB"),
    }
    page = PAGE.read_text(encoding="utf-8")
    assert f"{weights:,}" in page
    assert f"{of_heads:,}" in page
    for what, (size, said) in sizes.items():
        digits = len(said.partition(" ")[0].partition(".")[2])
        assert said == f"{size / 1e9:.{digits}f} GB", what
        assert said in page


def test_names_that_lead_to_no_heads(
    followed: Followed, newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, since what it imports takes seconds."""
    given = ["--model", str(followed.gguf), "-o", "none.safetensors", "--tokens", "352"]
    tries = [["slice-heads", name, *given] for name in WITHOUT_HEADS]
    monkeypatch.setattr(newcomer, "command", ["-P", "-c", TRY])
    ended = newcomer(json.dumps(tries))
    assert ended.stdout.split() == ["1", "1", "1"]
    for line, (name, reason) in zip(ended.stderr.splitlines(), WITHOUT_HEADS.items(), strict=True):
        assert line.startswith(f"error: {name}: {reason}")
    assert not (newcomer.folder / "none.safetensors").exists()
