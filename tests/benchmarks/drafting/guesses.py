"""How near the guesses of heads are to those of 32-bit weights.

    python -m tests.benchmarks.drafting.guesses [--record [FILE]]

The packaged heads of the default model, over its states as it reads the passages that measure quality.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from compiling.measure.texts import PASSAGES
from engine.core.rows_builder import RowsBuilder
from engine.core.token_tree import EMPTY_DRAFT
from engine.llama.context import Context
from engine.llama.model import Model, default_model_path
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import Heads
from engine.medusa.model_rows import ModelRows
from engine.medusa.onnx import graph
from engine.medusa.weights import Ids
from engine.speculative.setup import shipped_heads
from tests.engine.helpers.float_heads import FloatHeads
from tests.support.measuring.report import Report, add_record, shown_command

STATES = 2000
TOP = 8
HEADS = 4
AT_ONCE = 50  # rows of a call

Floats = NDArray[np.float32]


def read(count: int) -> tuple[Floats, Ids]:
    """Hidden states of the default model [count, width], and the tokens after each [count, HEADS]."""
    model = Model(default_model_path(), 0)
    text = model.tokenize(PASSAGES, add_bos=False, special=False)
    later = np.lib.stride_tricks.sliding_window_view(text[1 : count + HEADS], HEADS)
    tokens = text[:count].tolist()
    context = Context(model, cells=count + 256, seq_ids=1, max_rows=64, threads=0)
    states = []
    for start in range(0, len(tokens), AT_ONCE):
        rows = RowsBuilder()
        for position, token in enumerate(tokens[start : start + AT_ONCE], start):
            rows.add(0, [token], position, EMPTY_DRAFT)
        given = context.decode(rows.build(), hidden=True).hidden
        assert given is not None
        states.append(given.copy())
    return np.concatenate(states), later


class Nearness:
    """Of heads to those with 32-bit weights, over these states."""

    def __init__(self, hidden: Floats, later: Ids) -> None:
        self._path, model = str(shipped_heads(default_model_path())), Model(default_model_path(), 0)
        self._common: dict[str, Any] = {
            "width": model.width,
            "vocab_size": model.vocab_size,
            "model_rows": ModelRows(model.path),
        }
        self._hidden, self._later = hidden, later
        full = FloatHeads.load(self._path, **self._common)
        self._exact, self._chances = full.propose(hidden, HEADS, TOP, path=later)

    def of(self, load: Callable[..., Heads], **options: object) -> tuple[float, float]:
        """Share of equal best guesses, and mean difference of their probabilities."""
        tokens, given = load(self._path, **self._common, **options).propose(
            self._hidden, HEADS, TOP, path=self._later
        )
        same = tokens[..., 0] == self._exact[..., 0]
        return float(same.mean()), float(np.abs(given[..., 0] - self._chances[..., 0]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_record(parser)
    report = Report(
        shown_command("tests.benchmarks.drafting.guesses", []),
        parser.parse_args().record,
        Path(default_model_path()).name,
    )
    hidden, later = read(STATES)
    near = Nearness(hidden, later)
    columns = ("weights of heads", "the same best guess", "mean difference of its probability")
    with report.table("guesses", *columns) as table:

        def show(name: str, found: tuple[float, float]) -> None:
            table.row(name, *(f"{share:.3f}" for share in found))

        show("int8", near.of(load_heads))
        for block in (64, 128):
            with mock.patch.object(graph, "BLOCK", block):
                show(f"int8, a scale for each {block} weights", near.of(load_heads))
        show("lm_heads in 4 bits", near.of(load_heads, bits=4))
        with mock.patch.object(graph, "LAYER_BITS", 4):
            show("layers in 4 bits, too", near.of(load_heads, bits=4))
        table.note(f"{HEADS} heads, {len(hidden):,} states.")


if __name__ == "__main__":
    main()
