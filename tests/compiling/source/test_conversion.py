"""Each architecture as converted, against transformers on the same checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from compiling.base.progress import Silence
from compiling.source import converter
from engine.llama.context import Context, Rows
from engine.llama.model import Model
from tests.compiling.helpers.small_models import KINDS, write_checkpoint, write_vicuna

pytestmark = pytest.mark.slow

NEW_TOKENS = 64
MAX_RELATIVE_ERROR = 1e-3
PROMPT = "The gateway takes prompts over HTTP, puts them on Redis, and workers answer them in batches of 16."
TEXTS = [
    PROMPT,
    "",
    " leading and  double   spaces, and one at the end ",
    "line\nbreaks\n\n\tand a tab",
    "Grüße, naïve café: 你好 🦙 — ½ of 1234567890",
    "def step(self): return [x**2 for x in range(10)]",
]


@dataclass(frozen=True, slots=True)
class Converted:
    checkpoint: Path
    gguf: str


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, converter_folder: Path) -> dict[str, Converted]:
    """Every kind, in one process, since loading torch and transformers takes most of the time."""
    base = tmp_path_factory.mktemp("checkpoints")
    made = {kind: write_checkpoint(base / kind, kind) for kind in KINDS}
    made["vicuna"] = write_vicuna(base / "vicuna", dtype=torch.float32)
    jobs = [converter.Job(folder, kind, base / f"{kind}.gguf") for kind, folder in made.items()]
    converter.run(converter_folder, jobs, Silence())
    return {job.name: Converted(job.checkpoint, str(job.outfile)) for job in jobs}


ALL = [*KINDS, "vicuna"]


@pytest.mark.parametrize("kind", ALL)
def test_logits_and_greedy_text_are_those_of_transformers(converted: dict[str, Converted], kind: str) -> None:
    it = converted[kind]
    theirs = AutoModelForCausalLM.from_pretrained(it.checkpoint, attn_implementation="eager").eval()
    model = Model(it.gguf)
    prompt = model.tokenize(PROMPT, add_bos=True, special=False)
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.inference_mode():
        everything = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS,
            do_sample=False, eos_token_id=[], pad_token_id=0,
        )[0].numpy()  # fmt: skip
        expected = theirs(torch.from_numpy(everything)[None]).logits[0].numpy()
    ours = logits(model, everything.astype(np.int32))
    rows = slice(None, model.vocab_size)
    error = np.abs(ours - expected[:, rows]).max() / np.abs(expected[:, rows]).max()
    print(f"{kind}: maximum relative error {error:.2e}")
    assert error < MAX_RELATIVE_ERROR
    written = greedy(model, prompt)
    assert len(set(written)) > NEW_TOKENS // 8, "the model repeats itself, and equality says little"
    assert written == everything[len(prompt) :].tolist()


@pytest.mark.parametrize("kind", ALL)
def test_texts_become_the_same_tokens(converted: dict[str, Converted], kind: str) -> None:
    it = converted[kind]
    theirs = AutoTokenizer.from_pretrained(it.checkpoint, use_fast=kind == "phi")
    model = Model(it.gguf)
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False).input_ids
        assert model.tokenize(text, add_bos=False, special=False).tolist() == expected, text


def context(model: Model, rows: int) -> Context:
    return Context(model, cells=256, seq_ids=1, max_rows=rows, threads=1, kv_type="f32")


def logits(model: Model, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    ctx = context(model, len(tokens))  # which holds the logits
    return ctx.decode(_rows(tokens, 0, np.ones(len(tokens), np.int8))).logits.copy()


def greedy(model: Model, prompt: NDArray[np.int32]) -> list[int]:
    """Token by token, over the cache, as an engine writes."""
    ctx, written, tokens = context(model, len(prompt)), [], prompt
    position = 0
    while len(written) < NEW_TOKENS:
        wanted = np.zeros(len(tokens), np.int8)
        wanted[-1] = 1
        last: Any = ctx.decode(_rows(tokens, position, wanted)).logits[0]
        position += len(tokens)
        written.append(int(last.argmax()))
        tokens = np.array(written[-1:], np.int32)
    return written


def _rows(tokens: NDArray[np.int32], first: int, outputs: NDArray[np.int8]) -> Rows:
    positions = np.arange(first, first + len(tokens), dtype=np.int32)
    return Rows(tokens, positions, np.zeros(len(tokens), np.int32), outputs)
