"""What a GGUF holds, and which number formats it can be written in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gguf import GGMLQuantizationType, GGUFReader, LlamaFileType

from compiling.errors import FormatError, SourceError
from engine.model import read_shape
from engine.quantise import FORMATS, unfit_tensors

DEFAULT_TYPES = ("bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0")
INSTEAD = {"q5_k_m": "q5_0", "q4_k_m": "iq4_nl"}  # of about the same size, with a smaller block
EXACT = "f16"  # holds any value of a coarser format, and its kernels do not round activations to 8 bits
WHOLE = {GGMLQuantizationType.F32, GGMLQuantizationType.F16}  # formats whose own outputs are exact


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


def chosen_types(
    asked: Sequence[str] | None, source: Source, with_importance: bool
) -> tuple[list[str], list[str]]:
    """(types to make, lines on those left out).

    Raises FormatError for one that was asked for by name, and cannot be.
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


def check_names(asked: Sequence[str], with_importance: bool) -> list[str]:
    """The types of these names, each once. Raises FormatError."""
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
    return types, [f"{source.type} is what the source is in already"]


def _unfit(source: Source, name: str) -> str | None:
    """Why the shapes of the tensors forbid this type."""
    tensors = unfit_tensors(source.path, name)
    if not tensors:
        return None
    more = f", and {len(tensors) - 1} other tensors" if len(tensors) > 1 else ""
    return f"it packs {FORMATS[name].block} weights of a row together, which forbids {tensors[0]}{more}"
