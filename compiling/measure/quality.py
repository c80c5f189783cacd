"""Measures how far a GGUF's outputs are from those of the source's exact values, over a text.

    python -m compiling.measure.quality FILE --reference LOGITS --text TEXT [--write] [--threads N]

--write stores the logits of FILE as the reference; without it, FILE is compared with the reference. Prints
JSON lines, the last of which holds the result. Besides the model, only a few rows of logits are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from common.atomic_write import atomic_file
from compiling.base.errors import CompileError, RoomError
from compiling.measure import child
from compiling.measure.texts import read_text
from engine.llama.context import Context, Rows
from engine.llama.model import Model, Tokens

ROWS = 16  # per decode call, as with many concurrent requests
WINDOW = 512  # tokens of a context; the next window starts with an empty one
MOST_TOKENS = 4096  # of the text: more hardly changes the result, and takes hours with a large model
MOST_LETTERS = 64 * MOST_TOKENS  # characters that are tokenized: a token has fewer than 64
LOGIT_BYTES = 4

Logits = NDArray[np.float32]
LogProbabilities = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quality:
    """Over `tokens` positions of the text: mean KL divergence from the reference in nats per token, its
    standard error, the share of positions with the same most likely token, and the perplexity of the text.
    """

    tokens: int
    kl: float
    kl_error: float
    top1: float
    perplexity: float

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Rated:
    """Logits after each of a few tokens, [tokens, vocab], and the next token of the text for each.

    At the end of a window, following is one shorter.
    """

    logits: Logits
    following: Tokens


def windows(model: Model, text: str) -> list[Tokens]:
    """The text's tokens in windows, each with the model's BOS token first if it has one."""
    begin = model.tokenize("", add_bos=True, special=False)
    tokens = model.tokenize(text[:MOST_LETTERS], add_bos=False, special=False)[:MOST_TOKENS]
    length = min(WINDOW, model.trained_context or WINDOW) - len(begin)
    parts = [tokens[first : first + length] for first in range(0, len(tokens), length)]
    return [np.concatenate([begin, part]) for part in parts]


def most_rows(size: int) -> int:
    """Approximate number of rows of all windows of a text of `size` bytes, BOS tokens included."""
    return min(size, MOST_TOKENS) * WINDOW // (WINDOW - 1) + 2


def rated(model: Model, parts: Sequence[Tokens], threads: int = 0) -> Iterator[Rated]:
    """Yield a few rows at a time. llama.cpp owns their memory and reuses it."""
    context = Context(model, cells=max(map(len, parts)), seq_ids=1, max_rows=ROWS, threads=threads)
    for tokens in parts:
        context.truncate(0, 0)
        for first in range(0, len(tokens), ROWS):
            part = tokens[first : first + ROWS]
            positions = np.arange(first, first + len(part), dtype=np.int32)
            rows = Rows(part, positions, np.zeros(len(part), np.int32), np.ones(len(part), np.int8))
            yield Rated(context.decode(rows).logits, tokens[first + 1 : first + 1 + len(part)])


def log_probabilities(logits: Logits) -> LogProbabilities:
    """Natural log-softmax, [tokens, vocab]."""
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    return np.asarray(exact - np.log(np.exp(exact).sum(axis=1, keepdims=True)))


def divergences(exact: LogProbabilities, other: LogProbabilities) -> NDArray[np.float64]:
    """Kullback-Leibler divergence of `other` from `exact` in nats, [tokens]."""
    return np.asarray((np.exp(exact) * (exact - other)).sum(axis=1))


def same_likeliest(exact: LogProbabilities, other: LogProbabilities) -> NDArray[np.bool_]:
    """Whether both have the same most likely token, [tokens]."""
    return np.asarray(exact.argmax(axis=1) == other.argmax(axis=1))


class Tally:
    """Accumulates a Quality."""

    def __init__(self) -> None:
        self._divergences: list[NDArray[np.float64]] = []
        self._same: list[NDArray[np.bool_]] = []
        self._losses: list[NDArray[np.float64]] = []

    def add(self, exact: LogProbabilities, other: LogProbabilities, following: Tokens) -> None:
        self._divergences.append(divergences(exact, other))
        self._same.append(same_likeliest(exact, other))
        self._losses.append(-other[np.arange(len(following)), following])

    def quality(self) -> Quality:
        found, losses = np.concatenate(self._divergences), np.concatenate(self._losses)
        error = float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else 0.0
        same = float(np.concatenate(self._same).mean())
        perplexity = float(np.exp(losses.mean())) if len(losses) else math.nan
        return Quality(len(found), max(0.0, float(found.mean())), error, same, perplexity)


def write_reference(path: str, text: str, target: Path, threads: int, note: child.Note) -> Quality:
    """Write the logits of this file atomically; returns its quality against itself.

    Raises EngineError or CompileError.
    """
    try:
        with atomic_file(target, durable=True) as file:
            return _measure(path, text, threads, note, file, write=True)
    except OSError as error:
        raise RoomError(f"{target}: cannot be written: {error.strerror}") from None


def compare(path: str, text: str, reference: Path, threads: int, note: child.Note) -> Quality:
    """Compare with logits from write_reference() of the same text. Raises EngineError or CompileError."""
    try:
        with reference.open("rb") as file:
            return _measure(path, text, threads, note, file, write=False)
    except OSError as error:
        raise CompileError(f"{reference}: cannot be read: {error.strerror}") from None


def _measure(path: str, text: str, threads: int, note: child.Note, kept: BinaryIO, write: bool) -> Quality:
    model = Model(path)
    parts = windows(model, text)
    total, done, tally = sum(map(len, parts)), 0, Tally()
    for one in rated(model, parts, threads):
        if not np.isfinite(one.logits).all():
            raise CompileError(f"{path}: its outputs are not finite numbers")
        other = log_probabilities(one.logits)
        if write:
            kept.write(one.logits.tobytes())
            exact = other
        else:
            raw = kept.read(one.logits.size * LOGIT_BYTES)
            if len(raw) != one.logits.size * LOGIT_BYTES:
                raise CompileError(f"{path}: has other tokens than the reference")
            exact = log_probabilities(np.frombuffer(raw, dtype=np.float32).reshape(one.logits.shape))
        tally.add(exact, other, one.following)
        done += len(one.logits)
        note(done / total)
    return tally.quality()


def main() -> None:
    parser = child.parser(__doc__)
    parser.add_argument("--reference", type=Path, required=True, help="the reference's logits")
    parser.add_argument("--text", type=Path, required=True, help="a text file")
    parser.add_argument("--write", action="store_true", help="write the reference")
    options = parser.parse_args()

    def work(note: child.Note) -> dict[str, Any]:
        measured = write_reference if options.write else compare
        text = read_text(options.text)
        return measured(options.file, text, options.reference, options.threads, note).json()

    child.answer(work, options.follow)


if __name__ == "__main__":
    main()
