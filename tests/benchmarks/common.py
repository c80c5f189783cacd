"""What the throughput benchmarks share: the prompts, the default model, and how a figure is told."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.workers import ROOT

SPEC_BENCH = ROOT.parent / "shared" / "data" / "spec_bench_dev.jsonl"
OUTPUT_TOKENS = 128  # of each request at most: long enough that decoding, not prefill, sets the pace
SLOTS = 16  # requests decoded together by those that batch
TEMPLATE_TOKENS = 64  # a chat template's own tokens around one user message; 31 with the default model
WARM_UP_PROMPT = "Say hello."  # shares no text with the measured prompts: a cached prefix would flatter
WARM_UP_TOKENS = 8  # enough to load every weight and build every graph once


@dataclass(frozen=True, slots=True)
class Throughput:
    """Figures of one run; tokens as the measured system's own usage reports them, wall time in seconds.

    cached_tokens: of the prompts, not computed but taken from another request. thin_s: see thin_end().
    """

    requests: int
    prompt_tokens: int
    generated_tokens: int
    wall_s: float
    cached_tokens: int = 0
    thin_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of wall time, prefill included."""
        return self.generated_tokens / self.wall_s

    def line(self, name: str) -> str:
        return (
            f"{name:<24} {self.tokens_per_s:8.1f} tokens/s   {self.requests} requests, "
            f"{self.prompt_tokens} prompt + {self.generated_tokens} generated tokens in {self.wall_s:.2f} s"
        )


class ToolFailed(Exception):
    """A program of llama.cpp that we are compared with did not work; the message has its last words."""


def program(name: str) -> Path:
    """For argparse: a path, or what PATH has."""
    found = shutil.which(name)
    if not found:
        raise argparse.ArgumentTypeError(f"{name}: there is no such program")
    return Path(found)


def positive(text: str) -> int:
    """For argparse: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return int(text)


def thin_end(ended: Iterable[float], slots: int) -> float:
    """Seconds from when fewer requests than slots are left to the end. ended: when each did, in seconds."""
    times = sorted(ended)
    return times[-1] - times[len(times) - slots] if len(times) >= slots else times[-1]


def folder(name: str) -> Path:
    """For argparse: a folder that exists."""
    if not Path(name).is_dir():
        raise argparse.ArgumentTypeError(f"{name}: there is no such folder")
    return Path(name)


def last_words(log: str) -> str:
    return " | ".join(log.strip().splitlines()[-5:])


def load_spec_bench(path: Path, limit: int | None = None) -> list[str]:
    """The first turns of a Spec-Bench file (rows of question_id, category, turns), in file order.

    With a limit, prompts evenly spread over the file: its categories follow each other.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    prompts = [str(row["turns"][0]) for row in rows]
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[index * len(prompts) // limit] for index in range(limit)]


def context_needed(model: Path, prompts: list[str], max_tokens: int) -> int:
    """Tokens of the longest of these prompts as one chat message, and its output."""
    from llama_cpp import Llama

    vocabulary = Llama(str(model), vocab_only=True, verbose=False)
    try:
        longest = max(len(vocabulary.tokenize(prompt.encode(), add_bos=False)) for prompt in prompts)
    finally:
        vocabulary.close()
    return longest + TEMPLATE_TOKENS + max_tokens


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every throughput benchmark takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--model", type=Path, default=None, help="a GGUF (default: the packaged one)")
    made.add_argument("--prompts", type=Path, required=True, help="a file in the format of Spec-Bench")
    made.add_argument("--limit", type=positive, default=None, help="take only so many prompts, evenly spread")
    made.add_argument("--max-tokens", type=positive, default=OUTPUT_TOKENS)
    return made
