"""What heads would gain on a GPU, computed from how often they are right: `--only on-paper [--heads FILE]`.

A call of n rows takes T(n), which on a GPU is that of one row up to some 64. Each step verifies the same
chain or tree, and emits one token more than it accepts: 1 + the sum of the nodes' path probabilities. These
come from the counts in the metadata of heads, of held-out answers: how often a candidate of each rank was
right where those above it were, below best candidates alone and below others. Heads that see the path were
given it. Trees are the likeliest nodes, as for decoding "medusa" (engine/speculative/static_tree.py). Counts
are of all places of a text, and of sampled answers as well as of greedy ones. Steps begin where a draft was
wrong, which is where a text is harder, so that real steps accept less: the measured chain, of greedy answers,
stands beside the computed one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from engine.core.token_tree import ROOT
from engine.speculative.latency_model import LatencyProfile
from engine.speculative.setup import shipped_heads
from engine.speculative.static_tree import MAX_NODES, TreeSlot, best_nodes
from tests.benchmarks.common import ToolFailed
from tests.support.measuring.report import Report

TREES = (4, 8, 16, 32, MAX_NODES)  # nodes
FLAT = {1: 1.0, MAX_NODES + 1: 1.0}
PAPERS = (
    "Medusa (arXiv 2401.10774): 2.2 to 2.8 times",
    "Hydra (arXiv 2402.05109): up to 2.7 times",
)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How often candidates are right, given that those above them are.

    chances: [head][beside][rank], beside as in Calibration. first: how often the first guess is right, and
    measured: tokens a step of a chain of all heads, by the trainer on greedy held-out answers.
    """

    chances: list[list[list[float]]]
    first: float | None = None
    measured: float | None = None

    @classmethod
    def read(cls, heads: Path) -> Acceptance:
        """Of a heads file. Raises ToolFailed without its calibration."""
        with safe_open(heads, framework="numpy") as file:
            metadata = file.metadata() or {}
        if "calibration" not in metadata:
            raise ToolFailed(f"{heads} does not say how often its heads are right")
        counts = json.loads(metadata["calibration"])
        hits, trials = (
            np.array(counts[name]).sum(axis=-1) for name in ("hits", "trials")
        )  # over confidences
        scores = json.loads(metadata.get("scores", "{}"))
        first = next(iter(scores.get("top1", ())), None)
        return cls((hits / np.maximum(trials, 1)).tolist(), first, scores.get("tokens_per_step"))

    def tokens(self, slots: Sequence[TreeSlot]) -> float:
        """Expected tokens of a step that verifies this tree, whose nodes follow their parents."""
        paths: list[tuple[float, bool]] = []  # path probability, whether some node was not its head's best
        for parent, head, rank in slots:
            above, aside = (1.0, False) if parent == ROOT else paths[parent]
            paths.append((above * self.chances[head][aside][rank], aside or rank > 0))
        return 1 + sum(path for path, _ in paths)


@dataclass(frozen=True, slots=True)
class Step:
    """One that verifies a chain or tree of so many nodes. speedup: against steps of one row."""

    form: str
    nodes: int
    tokens: float
    speedup: float


def steps(acceptance: Acceptance, times: Mapping[int, float], draft: float) -> Iterator[Step]:
    """times: T(n)/T(1) by n, at least one; draft: of making a draft, in T(1)."""
    profile = LatencyProfile(times)

    def step(form: str, slots: Sequence[TreeSlot]) -> Step:
        tokens, took = acceptance.tokens(slots), profile.seconds(1 + len(slots)) + draft
        return Step(form, len(slots), tokens, tokens * profile.seconds(1) / took)

    for length in range(1, len(acceptance.chances) + 1):
        yield step("chain", [(ROOT if head == 0 else head - 1, head, 0) for head in range(length)])
    for nodes in TREES:
        yield step("tree", [slot for slot, _ in best_nodes(acceptance.chances, nodes)])


def parse_time(text: str) -> tuple[int, float]:
    """For argparse: ROWS:RATIO."""
    rows, colon, ratio = text.partition(":")
    try:
        parsed = int(rows), float(ratio)
    except ValueError:
        parsed = 0, 0.0
    if not colon or parsed[0] < 1 or not 0 < parsed[1] < 1e6:
        raise argparse.ArgumentTypeError(f"{text}: must be ROWS:RATIO, such as 4:1.46")
    return parsed


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of `on-paper`")
    group.add_argument(
        "--times",
        nargs="+",
        type=parse_time,
        default=list(FLAT.items()),
        metavar="ROWS:RATIO",
        help=f"T(n)/T(1), linear between these (default: 1 up to {MAX_NODES + 1} rows)",
    )
    group.add_argument(
        "--draft-time", type=float, default=0.0, help="of making a draft, in T(1) (default: 0)"
    )


def run(options: argparse.Namespace, report: Report) -> None:
    """Raises ToolFailed."""
    heads = options.heads or shipped_heads(str(options.model))
    if heads is None:
        raise ToolFailed(f"no heads for {options.model} are packaged: give --heads FILE")
    acceptance = Acceptance.read(heads)
    with report.table("on-paper", "form", "nodes", "tokens a step", "speed-up") as table:
        for one in steps(acceptance, dict(options.times), options.draft_time):
            table.row(one.form, one.nodes, f"{one.tokens:.2f}", f"{one.speedup:.2f}")
        ratios = ", ".join(f"{rows} {ratio:.2f}" for rows, ratio in options.times)
        table.note(
            f"Computed, not measured, from the counts of {heads.name}; T(n)/T(1) of n rows: {ratios}; "
            f"a draft takes {options.draft_time} T(1)."
        )
        if acceptance.first and acceptance.measured:
            table.note(
                "Measured on answers held out from training: the first guess is right "
                f"{acceptance.first:.2f} of the time, a chain of all heads emits {acceptance.measured:.2f} "
                "tokens a step."
            )
        table.note(f"Measured by the papers at batch 1 on an A100: {'; '.join(PAPERS)}.")
