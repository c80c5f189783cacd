"""Expected tokens and speed-ups of chains and trees, against values computed by hand."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from docs.measured.figures import read
from engine.core.token_tree import ROOT
from engine.llama.model import default_model_path
from engine.medusa.calibration import EDGES, RANKS, Calibration
from engine.speculative.setup import shipped_heads
from tests.benchmarks.common import ToolFailed
from tests.benchmarks.drafting.on_paper import FLAT, TREES, Acceptance, add_options, parse_time, run, steps
from tests.support.measuring.report import Report

ACCEPTANCE = Acceptance([[[0.5, 0.25], [0.0, 0.0]], [[0.4, 0.3], [0.1, 0.05]]])


def test_a_chain_accepts_as_far_as_its_heads_are_right() -> None:
    one, two, *_ = steps(ACCEPTANCE, FLAT, 0.0)
    assert (one.form, one.nodes, one.tokens) == ("chain", 1, pytest.approx(1 + 0.5))
    assert (two.form, two.nodes, two.tokens) == ("chain", 2, pytest.approx(1 + 0.5 + 0.5 * 0.4))
    assert two.speedup == pytest.approx(1.7), "more rows take no longer"


def test_a_tree_takes_the_likeliest_nodes() -> None:
    """.5, .25, .5 x .4 and .5 x .3 are the likeliest four, in this order."""
    four = next(step for step in steps(ACCEPTANCE, FLAT, 0.0) if step.form == "tree")
    assert (four.nodes, four.tokens) == (4, pytest.approx(1 + 0.5 + 0.25 + 0.2 + 0.15))


def test_below_a_second_best_candidate_heads_are_right_less_often() -> None:
    slots = [(ROOT, 0, 0), (ROOT, 0, 1), (1, 1, 0), (1, 1, 1)]
    assert ACCEPTANCE.tokens(slots) == pytest.approx(1 + 0.5 + 0.25 + 0.25 * 0.1 + 0.25 * 0.05)


def test_a_call_of_more_rows_and_a_draft_take_time() -> None:
    one, two, *trees = steps(ACCEPTANCE, {1: 1.0, 2: 1.2, 4: 1.6}, 0.05)
    assert one.speedup == pytest.approx(1.5 / (1.2 + 0.05))
    assert two.speedup == pytest.approx(1.7 / (1.4 + 0.05)), "three rows lie between"
    assert trees[0].speedup == pytest.approx(2.1 / (1.8 + 0.05)), "five rows go on as the last two"


def test_chances_are_those_of_the_counts(tmp_path: Path) -> None:
    """Over confidences, hits are added and trials are; a mean of shares would be another number."""
    hits, trials = (np.zeros((1, 2, RANKS, len(EDGES) + 1)) for _ in range(2))
    hits[0, 0, 0, [2, 9]], trials[0, 0, 0, [2, 9]] = [10, 30], [900, 100]
    hits[0, 1, 3, 4], trials[0, 1, 3, 4] = 1, 8
    counts = json.dumps({"edges": EDGES, "hits": hits.tolist(), "trials": trials.tolist()})
    Calibration(1).start_from(counts)  # what is read here is what the engine reads
    metadata = {"calibration": counts, "scores": json.dumps({"top1": [0.4, 0.3], "tokens_per_step": 1.5})}
    save_file({"0.0.linear.bias": np.zeros(4)}, tmp_path / "heads.safetensors", metadata=metadata)
    found = Acceptance.read(tmp_path / "heads.safetensors")
    assert found.chances[0][False][0] == pytest.approx(0.04)
    assert found.chances[0][True][3] == pytest.approx(0.125)
    assert (found.first, found.measured) == (0.4, 1.5)


def test_heads_without_counts_are_refused(tmp_path: Path) -> None:
    save_file({"0.0.linear.bias": np.zeros(4)}, tmp_path / "heads.safetensors")
    with pytest.raises(ToolFailed, match="does not say how often its heads are right"):
        Acceptance.read(tmp_path / "heads.safetensors")


def test_the_packaged_heads_have_a_table() -> None:
    shipped = shipped_heads(default_model_path())
    assert shipped
    found = list(steps(Acceptance.read(shipped), FLAT, 0.0))
    trees = [step for step in found if step.form == "tree"]
    assert [step.nodes for step in trees] == list(TREES)
    assert [step.tokens for step in trees] == sorted(step.tokens for step in trees)
    assert 1 < found[0].tokens < trees[-1].tokens < 1 + len(found)
    assert all(step.speedup == pytest.approx(step.tokens) for step in found)


def test_the_table_says_what_is_computed_and_what_others_measured(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args(["--times", "1:1", "4:1.5", "--draft-time", "0.1"])
    vars(options).update(heads=None, model=default_model_path())
    run(options, Report("the command", tmp_path / "figures.json"))
    [table] = read(tmp_path / "figures.json")
    assert table.name == "on-paper"
    assert len(table.rows) == 4 + len(TREES)
    assert all(float(speedup) < float(tokens) for *_, tokens, speedup in table.rows)
    computed, measured, papers = table.notes
    assert computed.startswith("Computed, not measured, ")
    assert computed.endswith("T(n)/T(1) of n rows: 1 1.00, 4 1.50; a draft takes 0.1 T(1).")
    assert measured.startswith("Measured on answers held out from training: the first guess is right 0.")
    assert "2.2 to 2.8 times" in papers
    assert "up to 2.7 times" in papers


def test_times_are_rows_and_ratios() -> None:
    assert parse_time("4:1.46") == (4, 1.46)
    for wrong in ("4", "4:", "0:1", "4:0", "x:1", "1.5:2"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be ROWS:RATIO"):
            parse_time(wrong)
