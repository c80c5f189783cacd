"""Our importance matrix beside that of llama.cpp's own `llama-imatrix`, of the same model and text.

The tool is no dependency: build it from the llama.cpp that llama-cpp-python's source carries.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from common.processor import usable_cores
from engine.weights.importance_matrix import CHUNK
from engine.weights.quantise import Importance
from tests.benchmarks import common

SUMS, COUNTS = ".in_sum2", ".counts"  # after each matrix's name, in the tool's file


def of_llama_cpp(tool: Path, model: str, text: Path) -> dict[str, NDArray[np.float64]]:
    """Matrix name -> its columns' importance, of experts in one array. Raises ToolFailed."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/imatrix.gguf"
        command = [tool, "-m", model, "-f", text, "-o", out, "-c", str(CHUNK), "-t", str(usable_cores())]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
        if ended.returncode != 0 or not Path(out).is_file():
            said = common.last_words(ended.stdout)
            raise common.ToolFailed(f"{tool.name} ended with {ended.returncode} and made no matrix: {said}")
        found = {tensor.name: np.array(tensor.data, dtype=np.float64) for tensor in GGUFReader(out).tensors}
    names = [name.removesuffix(SUMS) for name in found if name.endswith(SUMS)]
    counts = {name: found[name + COUNTS].reshape(-1, 1) for name in names}
    return {
        name: (found[name + SUMS].reshape(len(count), -1) / count).reshape(-1)
        for name, count in counts.items()
    }


def compared(ours: Importance, theirs: dict[str, NDArray[np.float64]]) -> str:
    """A line: how far columns are from the tool's, relative to those, and the matrices that only one has."""
    both = sorted(ours.keys() & theirs.keys())
    apart = np.concatenate([np.abs(ours[name] - theirs[name]) / theirs[name] for name in both])
    return (
        f"{len(both)} matrices, {apart.size} columns: apart by {np.median(apart):.1e} in the median, "
        f"{apart.max():.1e} at most; only ours: {sorted(ours.keys() - theirs.keys())}, "
        f"only the tool's: {sorted(theirs.keys() - ours.keys())}"
    )
