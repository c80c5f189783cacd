"""The properties of a GGUF, and the number formats in which it can be written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, LlamaFileType

from compiling.base.errors import FormatError, SourceError
from engine.llama.model import read_shape
from engine.weights.quantise import FORMATS, unfit_tensors

DEFAULT_TYPES = ("bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0")
K_BLOCK = 256  # weights in a block of a K-quant, which must divide the rows of the model's tensors
INSTEAD = {"q5_k_m": "q5_0", "q4_k_m": "iq4_nl"}  # of about the same size, with a smaller block
EXACT, WIDER = "f16", "f32"  # formats whose kernels do not round activations to 8 bits; WIDER holds any value
BEYOND_F16 = 0x4780  # 65,536 in BF16: F16 holds no such value, nor a larger one
AT_ONCE = 1 << 24  # numbers checked at a time, to limit memory
WHOLE = {GGMLQuantizationType.F32, GGMLQuantizationType.F16}  # formats computed without rounding activations


@dataclass(frozen=True, slots=True)
class Source:
    """A GGUF. type: the name of its number format. exact: its kernels do not round activations, so it can be
    the reference itself. cell_bytes: of one token in the KV cache.
    """

    path: str
    type: str
    exact: bool
    parameters: int
    bytes: int
    vocab_size: int
    cell_bytes: int


def read_source(path: str) -> Source:
    """Read the metadata of a GGUF, without its weights. Raises ModelLoadError or SourceError."""
    shape = read_shape(path)
    reader = _open(path)
    counts: Counter[GGMLQuantizationType] = Counter()
    for tensor in reader.tensors:
        if len(tensor.shape) > 1:
            counts[tensor.tensor_type] += int(tensor.n_elements)
    if not counts:
        raise SourceError(f"{path}: holds no weights")
    stated = reader.get_field("general.file_type")
    return Source(
        path=path,
        type=_name(None if stated is None else int(stated.contents()), counts),
        exact=counts.keys() <= WHOLE,
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        bytes=sum(int(tensor.n_bytes) for tensor in reader.tensors),
        vocab_size=shape.vocab_size,
        cell_bytes=shape.cell_bytes,
    )


def unpacked_format(path: str) -> str:
    """The format for a model's exact values: EXACT, or WIDER if a BF16 value is too large for EXACT.

    Reads the BF16 tensors. Raises SourceError.
    """
    for tensor in _open(path).tensors:
        if tensor.tensor_type == GGMLQuantizationType.BF16:
            numbers = tensor.data.reshape(-1).view(np.uint16)
            for first in range(0, len(numbers), AT_ONCE):
                if ((numbers[first : first + AT_ONCE] & 0x7FFF) >= BEYOND_F16).any():
                    return WIDER
    return EXACT


def _open(path: str) -> GGUFReader:
    try:
        return GGUFReader(path)
    except (ValueError, OSError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from None


def _name(stated: int | None, counts: Counter[GGMLQuantizationType]) -> str:
    """The format that the file states, otherwise that of most of its weights."""
    if stated in set(LlamaFileType):
        return LlamaFileType(stated).name.lower().removeprefix("mostly_").removeprefix("all_")
    return counts.most_common(1)[0][0].name.lower()


def chosen_types(
    asked: Sequence[str] | None, source: Source, with_importance: bool
) -> tuple[list[str], list[str]]:
    """Return (types to make, messages about types that are left out).

    asked: None for DEFAULT_TYPES. Raises FormatError if a type in `asked` is unknown or does not fit.
    """
    if asked is not None:
        return _named(asked, source, with_importance)
    types, left_out = [], []
    for name in DEFAULT_TYPES:
        why = _unfit(source, name)
        if why:
            other = INSTEAD.get(name)
            left_out.append(f"{name} is left out: {why}" + (f"; {other} takes its place" if other else ""))
            name = other or ""
        if name and name != source.type:
            types.append(name)
    return types, left_out


def least_bytes(asked: Sequence[str] | None, numbers: int, source: str = "") -> tuple[int, ...]:
    """Lower bounds, in bytes, of files of this many numbers in each type.

    asked: None for the types that fit any model. source: the type of the existing file, which is left out.
    """
    types = [name for name in DEFAULT_TYPES if FORMATS[name].block < K_BLOCK] if asked is None else asked
    return tuple(numbers * int(re.findall(r"\d+", name)[0]) // 8 for name in types if name != source)


def check_names(asked: Sequence[str], with_importance: bool) -> list[str]:
    """The types of these names without duplicates. Raises FormatError."""
    types = list(dict.fromkeys(name.strip().lower() for name in asked))
    for name in types:
        if name not in FORMATS:
            raise FormatError(f"no type {name or '(empty)'}; there are {', '.join(FORMATS)}")
        if FORMATS[name].needs_importance and not with_importance:
            raise FormatError(f"{name} needs an importance matrix: give --imatrix TEXT")
    return types


def _named(asked: Sequence[str], source: Source, with_importance: bool) -> tuple[list[str], list[str]]:
    types = check_names(asked, with_importance)
    for name in types:
        if why := _unfit(source, name):
            raise FormatError(f"{name}: {why}")
    if source.type not in types:
        return types, []
    types.remove(source.type)
    return types, [f"{source.type} is left out: the source is in this format"]


def _unfit(source: Source, name: str) -> str | None:
    """Why this type does not fit the shapes of the tensors; None if it does."""
    tensors = unfit_tensors(source.path, name)
    if not tensors:
        return None
    more = f", and {len(tensors) - 1} other tensors" if len(tensors) > 1 else ""
    return f"it packs {FORMATS[name].block} weights of a row together, which forbids {tensors[0]}{more}"
