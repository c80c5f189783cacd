"""Number formats that llama.cpp can write, and the parser of its dry-run log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.base.errors import ModelLoadError

Importance = Mapping[str, NDArray[np.float32]]  # tensor -> mean square of the activations of each column


@dataclass(frozen=True, slots=True)
class Format:
    """number: of llama.h's llama_ftype, as in a GGUF's general.file_type. block: weights packed together,
    which must divide the length of a matrix's rows. needs_importance: llama.cpp refuses it without a matrix.
    """

    number: int
    block: int = 1
    needs_importance: bool = False


_SMALL, _LARGE = 32, 256

FORMATS: Mapping[str, Format] = {
    "f32": Format(0),
    "f16": Format(1),
    "bf16": Format(32),
    "q8_0": Format(7, _SMALL),
    "q6_k": Format(18, _LARGE),
    "q5_k_m": Format(17, _LARGE),
    "q5_k_s": Format(16, _LARGE),
    "q5_1": Format(9, _SMALL),
    "q5_0": Format(8, _SMALL),
    "q4_k_m": Format(15, _LARGE),
    "q4_k_s": Format(14, _LARGE),
    "q4_1": Format(3, _SMALL),
    "q4_0": Format(2, _SMALL),
    "iq4_nl": Format(25, _SMALL),
    "iq4_xs": Format(30, _LARGE),
    "q3_k_l": Format(13, _LARGE),
    "q3_k_m": Format(12, _LARGE),
    "q3_k_s": Format(11, _LARGE),
    "iq3_m": Format(27, _LARGE),
    "iq3_s": Format(26, _LARGE),
    "iq3_xs": Format(22, _LARGE, needs_importance=True),
    "iq3_xxs": Format(23, _LARGE, needs_importance=True),
    "q2_k": Format(10, _LARGE),
    "q2_k_s": Format(21, _LARGE, needs_importance=True),
    "iq2_m": Format(29, _LARGE, needs_importance=True),
    "iq2_s": Format(28, _LARGE, needs_importance=True),
    "iq2_xs": Format(20, _LARGE, needs_importance=True),
    "iq2_xxs": Format(19, _LARGE, needs_importance=True),
    "iq1_m": Format(31, _LARGE, needs_importance=True),
    "iq1_s": Format(24, _LARGE, needs_importance=True),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One of a model, as a format would change it. shape: its row length first, as GGUFs have it.

    before, after: ggml's names of number types, such as q4_K. misfit: what must divide the rows of the type
    that the format has for this tensor, and does not, so that `after` is another; else 0.
    """

    name: str
    shape: tuple[int, ...]
    before: str
    after: str
    misfit: int = 0

    def __str__(self) -> str:
        return f"{self.name} [{' x '.join(map(str, self.shape[::-1]))}]"


_OUTPUT, _EMBEDDINGS = "output.weight", "token_embd.weight"
_LINE = re.compile(
    r"^\[ *(?P<number>\d+)/ *(?P<count>\d+)\] +(?P<name>\S+) +- \[(?P<shape>[ \d,]+)\], "
    r"type = +(?P<before>\w+), size = [^(\n]*(?:\((?P<after>\w+)\))?",
    re.MULTILINE,
)
_MISFIT = re.compile(r"^warning: (?P<name>\S+) +- ncols +\d+ not divisible by +(?P<block>\d+) ", re.MULTILINE)
_DONE = re.compile(r"^\[ *(\d+)/ *(\d+)\] ")


def read_plan(log: str, format: Format) -> list[Tensor]:
    """Parse the tensors that a dry run of llama.cpp lists."""
    misfits = {match["name"]: int(match["block"]) for match in _MISFIT.finditer(log)}
    lines = list(_LINE.finditer(log))
    # llama.cpp changes the type of this matrix without logging it.
    head = _OUTPUT if any(line["name"] == _OUTPUT for line in lines) else _EMBEDDINGS
    plan = []
    for line in lines:
        lengths = [int(length) for length in line["shape"].split(",")]
        while len(lengths) > 1 and lengths[-1] == 1:
            lengths.pop()
        if line["name"] == head and lengths[0] % format.block:
            misfits[head] = format.block
        after = line["after"] or line["before"]
        misfit = misfits.get(line["name"], 0)
        plan.append(Tensor(line["name"], tuple(lengths), line["before"], after, misfit))
    return plan


def read_progress(line: str) -> tuple[int, int] | None:
    """(tensors done, all tensors) from a line of llama.cpp's log, if it is a progress line."""
    match = _DONE.match(line)
    return (int(match[1]), int(match[2])) if match else None


def unfit(plan: list[Tensor], format: Format) -> list[Tensor]:
    """The tensors whose row length is no multiple of the format's block.

    A format may use finer types with a larger block for a few tensors; if those do not fit, llama.cpp takes
    still finer ones, which is no reason to refuse the format.
    """
    return [tensor for tensor in plan if tensor.misfit and tensor.misfit <= format.block]


_VERY_LOW = {"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs"}  # ggml's types, not the formats


def _needing_importance(plan: list[Tensor], name: str) -> list[Tensor]:
    """The tensors that llama.cpp refuses to write in this format without an importance matrix."""
    types = {*_VERY_LOW, "q2_K"} if name == "q2_k_s" else _VERY_LOW
    return [
        t for t in plan if t.after != t.before and t.after in types and t.name not in (_OUTPUT, _EMBEDDINGS)
    ]


def fitting(rows: set[int]) -> list[str]:
    """Formats whose blocks divide rows of all these lengths."""
    return [name for name, format in FORMATS.items() if not any(row % format.block for row in rows)]


def check_importance(path: str, name: str, plan: list[Tensor], importance: Importance) -> None:
    """Raises ModelLoadError for a matrix that is not of this model, or too little of it for this format."""
    if not any(tensor.name in importance for tensor in plan):
        raise ModelLoadError(f"{path}: the importance matrix is not of this model: it knows no tensor of it")
    for tensor in plan:
        if (values := importance.get(tensor.name)) is None:
            continue
        columns = int(np.prod((tensor.shape[0], *tensor.shape[2:])))
        if values.size != columns or not np.isfinite(values).all() or (values < 0).any():
            raise ModelLoadError(
                f"{path}: the importance matrix is not of this model: {tensor} takes {columns} finite "
                f"numbers of at least 0, and it has {values.size}"
            )
    for tensor in _needing_importance(plan, name):
        if tensor.name not in importance:
            raise ModelLoadError(f"{path}: {name} needs the importance of {tensor}, which the matrix lacks")
