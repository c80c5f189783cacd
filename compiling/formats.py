"""What a GGUF holds, and which number formats it can be written in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gguf import GGMLQuantizationType, GGUFReader, LlamaFileType

from compiling.errors import FormatError, SourceError
from engine.model import read_shape
from engine.quantise import FORMATS

DEFAULT_TYPES = ("bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0")
EXACT = "f16"  # holds any value of a coarser format, and its kernels do not round activations to 8 bits
WHOLE = {GGMLQuantizationType.F32, GGMLQuantizationType.F16}  # formats whose own outputs are exact


BITS = {"f16": 16.5, "bf16": 16.5, "q8_0": 9.0, "q4_0": 6.0}
HEADER_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """type: its number format by name. exact: its own outputs are those of its values. cell_bytes: of a token
    in a KV cache.
    """

    path: str
    type: str
    exact: bool
    parameters: int
    bytes: int
    vocab_size: int
    cell_bytes: int


def read_source(path: str) -> Source:
    """Without reading its weights. Raises ModelLoadError or SourceError."""
    shape = read_shape(path)
    try:
        reader = GGUFReader(path)
    except (ValueError, OSError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from None
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


def _name(stated: int | None, counts: Counter[GGMLQuantizationType]) -> str:
    """By what the file says, else by what most of its numbers are in."""
    if stated in set(LlamaFileType):
        return LlamaFileType(stated).name.lower().removeprefix("mostly_").removeprefix("all_")
    return counts.most_common(1)[0][0].name.lower()


def chosen_types(asked: Sequence[str] | None, source: Source) -> tuple[list[str], list[str]]:
    """(types to make, lines on those left out). Raises FormatError for one that was asked for by name."""
    left_out = []
    if asked is None:
        types = [name for name in DEFAULT_TYPES if name in FORMATS]
    else:
        types = list(dict.fromkeys(name.strip().lower() for name in asked))
        for name in types:
            if name not in FORMATS:
                raise FormatError(f"no type {name or '(empty)'}; there are {', '.join(FORMATS)}")
    if source.type in types:
        types.remove(source.type)
        if asked is not None:
            left_out.append(f"{source.type} is what the source is in already")
    return types, left_out


def size_of(source: Source, type: str) -> int:
    """Bytes of the file of this type."""
    return int(source.parameters * BITS[type] / 8) + HEADER_BYTES
