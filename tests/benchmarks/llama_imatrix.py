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

from engine.importance import CHUNK
from engine.quantise import Importance
from tests.benchmarks import common

SUMS, COUNTS = ".in_sum2", ".counts"  # after each matrix's name, in the tool's file


def of_llama_cpp(tool: Path, model: str, text: Path) -> dict[str, NDArray[np.float64]]:
    """Matrix name -> its columns' importance. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/imatrix.gguf"
        command = [tool, "-m", model, "-f", text, "-o", out, "-c", str(CHUNK), "-t", str(common.cores())]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = {tensor.name: np.array(tensor.data, dtype=np.float64) for tensor in GGUFReader(out).tensors}
    return {
        name.removesuffix(SUMS): (
            sums.reshape(found[name.removesuffix(SUMS) + COUNTS].size, -1)
            / found[name.removesuffix(SUMS) + COUNTS].reshape(-1, 1)
        ).reshape(-1)
        for name, sums in found.items()
        if name.endswith(SUMS)
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
