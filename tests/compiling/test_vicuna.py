"""Vicuna's path as docs/vicuna.md has it, on a small model under the same names and in the same files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from compiling import converter
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
from engine.model import Model
from tests.compiling.small_hub import Repository, SmallHub
from tests.compiling.small_models import PADDED_VOCAB
from tests.compiling.small_vicuna import (
    END,
    MODEL,
    PUBLISHED_HEADS,
    QUESTION,
    TOKENS,
    SmallVicuna,
    make,
)
from tests.workers import ROOT

PAGE = ROOT / "docs" / "vicuna.md"
PREPARE = """
import sys
from pathlib import Path
from compiling.progress import Silence
from compiling.source import prepare
print(prepare(sys.argv[1], Path(sys.argv[2]), progress=Silence()))
"""
SMALLER = {"8192": "352"}  # of the page's numbers: half of the vocabulary, there and here


@dataclass(frozen=True, slots=True)
class Path7B:
    """What the page's commands have left in a folder."""

    small: SmallVicuna
    gguf: Path
    heads: Path
    said: str


def commands() -> list[str]:
    """Those of the page that call medusaq, in order, continued lines as one."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("medusaq ")]


def command(name: str) -> list[str]:
    [line] = [line for line in commands() if line.split()[1] == name]
    return [SMALLER.get(word, word) for word in line.split()]


class Shell:
    """Runs Python in a folder, whose hub is ours."""

    def __init__(self, folder: Path, hub: str, converter_folder: Path) -> None:
        self.folder = folder
        self._env = os.environ | {
            converter.SETTING: str(converter_folder),
            "HF_ENDPOINT": hub,
            "HF_HOME": str(folder / "hub"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
        }
        self._env.pop("HF_HUB_OFFLINE", None)

    def try_(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip

    def run(self, *arguments: str) -> str:
        done = self.try_(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallVicuna:
    return make(tmp_path_factory.mktemp("repositories"))


@pytest.fixture(scope="module")
def shell(
    small: SmallVicuna, converter_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shell]:
    hub = SmallHub(small.repositories | {"org/no-heads": Repository({"config.json": b"{}"})})
    yield Shell(tmp_path_factory.mktemp("vicuna"), hub.url, converter_folder)
    hub.stop()


@pytest.fixture(scope="module")
def made(small: SmallVicuna, shell: Shell) -> Path7B:
    """By the commands, in processes of their own with the hub's real client."""
    gguf = shell.folder / shell.run("-c", PREPARE, MODEL, "vicuna").strip()
    (shell.folder / "vicuna" / "vicuna-7b-v1.3.q4_k_m.gguf").symlink_to(gguf)
    said = shell.run("-P", "-m", "cli", *command("slice-heads")[1:])
    return Path7B(small, gguf, shell.folder / "vicuna-heads.safetensors", said)


@pytest.fixture(scope="module")
def worker(made: Path7B) -> Iterator[EngineService]:
    """The engine as a worker starts it, in single precision throughout."""
    config = EngineConfig(
        model=str(made.gguf), heads=str(made.heads), chat_template="vicuna", kv_type="f32", slots=2,
        kv_cells=1024, threads=1,
    )  # fmt: skip
    service = load(config)
    yield service
    service.close()


def answer(worker: EngineService, decoding: Decoding, **sampling: object) -> Completion:
    params = SamplingParams(max_tokens=TOKENS, **sampling)  # type: ignore[arg-type]
    request = Request(id=decoding, sampling=params, prompt=QUESTION, decoding=decoding)
    return worker.submit(request).result(timeout=60)


def test_by_name_to_a_gguf_and_sliced_heads(made: Path7B) -> None:
    assert made.gguf.name == "vicuna-7b-v1.3-f32.gguf"
    assert made.said.startswith(
        f"vicuna-heads.safetensors: {PUBLISHED_HEADS} heads, 352 of {PADDED_VOCAB} tokens, which are "
    )
    assert Model(str(made.gguf), vocabulary_only=True).chat_template is None, "nobody makes one up"


def test_the_template_gives_transformers_own_tokens(made: Path7B, worker: EngineService) -> None:
    done = answer(worker, Decoding.NORMAL, ignore_eos=True)
    assert done.prompt_tokens == len(made.small.prompt)
    assert (
        worker._engine.encode(
            Request(id="r", sampling=SamplingParams(max_tokens=1), prompt=QUESTION)
        ).tolist()
        == made.small.prompt
    )


def test_plain_and_drafted_answers_are_transformers_own(made: Path7B, worker: EngineService) -> None:
    plain = answer(worker, Decoding.NORMAL, ignore_eos=True)
    drafted = answer(worker, Decoding.MEDUSA, ignore_eos=True)
    assert list(plain.tokens) == made.small.written
    assert list(drafted.tokens) == made.small.written
    assert drafted.text == plain.text
    assert not plain.drafted
    assert len(set(made.small.written)) > TOKENS // 4, "it repeats itself, and equality says little"
    heads = drafted.drafted["medusa"]
    assert heads.verified > heads.accepted > 0, "some of what they foresee was sliced away"


def test_an_answer_ends_at_its_control_token(made: Path7B, worker: EngineService) -> None:
    ends = made.small.written.index(END)
    assert 8 < ends < TOKENS
    for decoding in (Decoding.NORMAL, Decoding.MEDUSA):
        done = answer(worker, decoding)
        assert done.finish_reason is FinishReason.STOP
        assert list(done.tokens) == made.small.written[:ends]
        assert "</s>" not in done.text


def test_the_pages_sizes_are_those_of_the_shapes() -> None:
    layers, width, feed, vocab, heads = 32, 4096, 11008, 32000, PUBLISHED_HEADS
    matrices = 2 * vocab * width + layers * (4 * width * width + 3 * width * feed)
    norms = (2 * layers + 1) * width  # stay in 32 bits
    of_heads, sliced = (heads * (rows * width + width * width + width) for rows in (vocab, 8192))
    # Q4_K_M: the lm_head, and of half of the layers attn_v and ffn_down, in Q6_K; all else in Q4_K
    finer = vocab * width + layers // 2 * (width * width + width * feed)
    cell = 2 * layers * width * 2
    q4_k_m, q8_0 = finer * 210 / 256 + (matrices - finer) * 144 / 256, matrices * 34 / 32
    weights = matrices + norms
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
        "memory to measure": (2 * weights + 4096 * cell + 3e8, "15.9 GB"),
    }
    page = PAGE.read_text(encoding="utf-8")
    assert f"{weights:,}" in page
    assert f"{of_heads:,}" in page
    for what, (size, said) in sizes.items():
        digits = len(said.partition(" ")[0].partition(".")[2])
        assert said == f"{size / 1e9:.{digits}f} GB", what
        assert said in page


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org/missing", "error: org/missing: no such repository on the hub"),
        ("org/no-heads", "error: org/no-heads: a repository without heads: none of medusa_lm_head"),
        ("folder/heads.pt", "error: folder/heads.pt: no such file or folder"),
    ],
)
def test_names_that_lead_to_no_heads(made: Path7B, shell: Shell, name: str, reason: str) -> None:
    given = ["--model", str(made.gguf), "-o", "none.safetensors", "--tokens", "352"]
    done = shell.try_("-P", "-m", "cli", "slice-heads", name, *given)
    assert done.returncode == 1
    assert done.stderr.startswith(reason)
    assert done.stderr.count("\n") == 1
    assert not (shell.folder / "none.safetensors").exists()
