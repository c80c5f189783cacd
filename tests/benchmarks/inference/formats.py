"""The number formats: how fast the engine is in each, and how far its outputs are from the exact ones."""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path

from cli.commands import compile as command
from cli.reports import compile_report
from engine import EngineConfig
from engine.llama.model import Model
from engine.weights.format_selection import time_formats, unpacked
from engine.weights.importance_matrix import importance_of
from engine.weights.quantise import Importance, requantise
from tests.benchmarks.baselines import llama_imatrix
from tests.benchmarks.common import SLOTS
from tests.support.measuring.fidelity import agreement, divergence, log_probabilities
from tests.support.measuring.report import Report
from tests.support.workers import ROOT

EXAMPLES = ROOT / "examples" / "prompts.jsonl"
COMPILED = ("f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_0", "iq4_nl")
DIVERGENCE, AGREEMENT = "nats a token from F16", "same likeliest token"


def weights(model: str, report: Report) -> None:
    """Those that a worker chooses between."""
    models = {"as shipped": Model(model), "unpacked to BF16": Model(model, weights=unpacked(model))}
    paths = {"as shipped": model, "unpacked to BF16": unpacked(model)}
    timings = time_formats(list(models.values()), EngineConfig(model=model, slots=SLOTS))
    texts = EXAMPLES.read_text(encoding="utf-8").splitlines()[::3]
    with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder:
        exact_path = f"{folder}/exact.gguf"
        requantise(model, exact_path, "f16")  # which holds any value of a coarser format to 11 bits
        exact = log_probabilities(exact_path, *texts)
    columns = ("weights", "one row", f"{SLOTS} rows", "a prompt token", DIVERGENCE, AGREEMENT)
    with report.table("weights", *columns) as table:
        for (name, path), timing in zip(paths.items(), timings, strict=True):
            found = log_probabilities(path, *texts)
            table.row(
                name,
                f"{timing.alone * 1e3:.1f} ms",
                f"{timing.together * 1e3:.1f} ms",
                f"{timing.prompt_token * 1e3:.2f} ms",
                f"{divergence(exact, found):.1e}",
                f"{agreement(exact, found):.1%}",
            )
        table.note(f"Over {len(exact):,} tokens of every third line of `examples/prompts.jsonl`.")


def importance(model: str, imatrix: Path | None, report: Report) -> None:
    """What an importance matrix does for formats of four bits, of examples and of a text of another kind."""
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines()
    documents = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    others = "\n".join(line for k, line in enumerate(lines) if k % 3)
    columns = ("format", "matrix of", "size", DIVERGENCE, AGREEMENT)
    with (
        tempfile.TemporaryDirectory(prefix="medusaq-bench-") as name,
        report.table("importance", *columns) as table,
    ):
        folder = Path(name)
        exact_path, made, text = str(folder / "exact.gguf"), str(folder / "made.gguf"), folder / "text.txt"
        requantise(model, exact_path, "f16")
        matrices: dict[str, Importance | None] = {"none": None}
        for kind, content in (("other lines", others), ("documents", documents[:60_000])):
            text.write_text(content, encoding="utf-8")
            theirs = imatrix and llama_imatrix.of_llama_cpp(imatrix, exact_path, text)
            ours = matrices[kind] = importance_of(exact_path, text)
            if theirs:
                table.note(f"Beside `llama-imatrix`, of {kind}: {llama_imatrix.compared(ours, theirs)}.")
        exact = log_probabilities(exact_path, *lines[::3])
        for format, (kind, matrix) in product(("q4_0", "iq4_nl"), matrices.items()):
            requantise(exact_path, made, format, importance=matrix)
            found = log_probabilities(made, *lines[::3])
            table.row(
                format,
                kind,
                f"{Path(made).stat().st_size / 1e6:.1f} MB",
                f"{divergence(exact, found):.3f}",
                f"{agreement(exact, found):.1%}",
            )
        table.note(f"Over {len(exact):,} tokens of every third line of `examples/prompts.jsonl`.")


def compiled(model: Path, report: Report) -> None:
    """The table of `medusaq compile`."""
    with tempfile.TemporaryDirectory(prefix="medusaq-bench-") as folder:
        found = command.run(str(model), Path(folder), types=COMPILED, load="bulk")
    made = compile_report.table(found)
    with report.table("formats", *made.columns) as table:
        for row in made.rows:
            table.row(*row)
        for note in (compile_report.verdict(found), compile_report.explained(found)):
            table.note(note)
