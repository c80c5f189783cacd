"""Ranks tokens by their frequency in text. The first of them become a draft vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.llama.model import Model, Tokens
from training.base.errors import PromptsError
from training.prompts.prompts import JSON_SUFFIXES, compose, read_prompts

COMPOSED = 12_000  # prompts, counted if no text is given: about a million tokens
BLOCK = 1 << 14  # characters of a text that are tokenized together: llama.cpp's time is quadratic


def read_texts(paths: Iterable[Path]) -> Iterator[str]:
    """The prompts of JSON lines files, and the whole text of other files. Raises PromptsError."""
    for path in paths:
        if path.suffix.lower() in JSON_SUFFIXES:
            yield from (prompt.text for prompt in read_prompts([path]))
        else:
            yield from _blocks(path)


def composed_texts() -> Iterator[str]:
    """Composed prompts of all kinds of tasks, always the same ones."""
    return (prompt.text for prompt in compose(COMPOSED))


def count_tokens(model: Model, texts: Iterable[str]) -> NDArray[np.int64]:
    """Number of occurrences of each token in the texts, [vocab]."""
    counts = np.zeros(model.vocab_size, dtype=np.int64)
    for text in texts:
        np.add.at(counts, model.tokenize(text, add_bos=False, special=False), 1)
    return counts


def ranked(model: Model, counts: NDArray[np.int64]) -> Tokens:
    """All token ids, the most likely in answers first: [vocab].

    End tokens come first: texts do not contain them, but every answer has one. The others follow by their
    counts, then by their ids, since tokenizers order pieces by frequency. Tokens that are not text and were
    never seen come last.
    """
    ids = np.arange(model.vocab_size, dtype=np.int32)
    ends = np.array([model.ends_generation(token) for token in ids.tolist()])
    text = np.array([model.is_text(token) for token in ids.tolist()])
    return ids[np.lexsort((ids, ~text & (counts == 0), -counts, ~ends))]


def _blocks(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            while lines := stream.readlines(BLOCK):
                yield "".join(lines)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PromptsError(f"{path} cannot be read: {reason}") from error
