"""Small repositories in the files of Vicuna's, whose heads foresee one answer and guess at all others.

What they hold is known from transformers: the answer to QUESTION, and at which token it ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.compiling.helpers.small_hub import Repository
from tests.compiling.helpers.small_models import PADDED_VOCAB, write_vicuna

MODEL, HEADS = "lmsys/vicuna-7b-v1.3", "FasterDecoding/medusa-vicuna-7b-v1.3"
QUESTION = "Which services start with one command?"
PROMPT = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    f"detailed, and polite answers to the user's questions. USER: {QUESTION} ASSISTANT:"
)
TOKENS = 64
ENDS_AFTER = 40  # tokens, or a few less: the model is bent to end its answer there
END = 2  # </s>
PUBLISHED_HEADS = 5
WIDTH, LAYERS = 256, 2  # of which K-quants pack all rows


@dataclass(frozen=True, slots=True)
class SmallVicuna:
    """repositories: by name. prompt: token ids. written: the next 64 of them, greedily, whatever ends."""

    repositories: dict[str, Repository]
    prompt: list[int]
    written: list[int]
    heads: dict[str, Tensor]


def make(folder: Path) -> SmallVicuna:
    """In single precision, so that a greedy answer is one whatever computes it."""
    checkpoint = write_vicuna(folder / "model", dtype=torch.float32, width=WIDTH, layers=LAYERS)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, use_fast=False, legacy=True)
    prompt: list[int] = tokenizer(PROMPT).input_ids
    _end_answer(checkpoint, prompt)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    written, states = _write(model, prompt)
    heads = _foreseeing(written, states)
    torch.save(heads, folder / "medusa_lm_head.pt")
    said = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": MODEL}
    return SmallVicuna(
        {
            MODEL: Repository({path.name: path.read_bytes() for path in checkpoint.iterdir()}),
            HEADS: Repository(
                {
                    "medusa_lm_head.pt": (folder / "medusa_lm_head.pt").read_bytes(),
                    "config.json": json.dumps(said).encode(),
                }
            ),
        },
        prompt,
        written,
        heads,
    )


def _write(model: Any, prompt: list[int]) -> tuple[list[int], Tensor]:
    """64 tokens, and the state [64, width] that gave each."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        everything = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS,
            do_sample=False, eos_token_id=[], pad_token_id=0,
        )  # fmt: skip
        states = model.model(everything).last_hidden_state[0, len(prompt) - 1 : -1]
    return everything[0, len(prompt) :].tolist(), states


def _end_answer(checkpoint: Path, prompt: list[int]) -> None:
    """Turn the lm_head's row of </s> to a state of the answer, in the shard that holds it."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    _, states = _write(model, prompt)
    state = states[ENDS_AFTER]
    highest = (model.lm_head.weight.detach() @ state).max()
    index = json.loads((checkpoint / "pytorch_model.bin.index.json").read_text())
    shard = checkpoint / index["weight_map"]["lm_head.weight"]
    weights = torch.load(shard, weights_only=True)
    weights["lm_head.weight"][END] = (1.1 * highest / (state @ state)) * state
    torch.save(weights, shard)


def _foreseeing(written: list[int], states: Tensor) -> dict[str, Tensor]:
    """Version 1, 16 bits: head i maps the state that gave token t to token t + 1 + i of this answer.

    The blocks are the identity; the lm_heads come from least squares, which as many numbers as tokens solve.
    """
    heads = {}
    for head in range(PUBLISHED_HEADS):
        later = torch.tensor(written[1 + head :])
        wanted = torch.nn.functional.one_hot(later, PADDED_VOCAB).float()
        rows = torch.linalg.lstsq(states[: len(later)], 8 * wanted).solution.T
        heads[f"{head}.0.linear.weight"] = torch.zeros(WIDTH, WIDTH).half()
        heads[f"{head}.0.linear.bias"] = torch.zeros(WIDTH).half()
        heads[f"{head}.1.weight"] = rows.contiguous().half()
    return heads
