"""Embeds a small llama model into a larger shape with zeros: it says the same words, and takes longer.

    python -m tests.benchmarks.large.widened --out 3b.gguf --shape 3B --format q8_0 --heads-out 3b.safetensors

What it is: a file whose calls take the time of a model of that shape, since kernels do not know zeros, while
every answer is the small model's, and with it how often heads and lookups are right.
What it is not: a better model. It says nothing of the quality of models of that size, nor of how often drafts
are right for them.

From width d to D: columns and rows of zeros keep the further numbers of a state at zero. RMSNorm means over D
then, so that its weights are scaled by sqrt(d/D) and its epsilon by d/D. Further attention heads have zero
weights; as many as before share a key and value head. Further rows of the feed-forward part are zero, and so
are all weights of further layers, which the residual passes.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, Keys, dequantize
from gguf.gguf_reader import ReaderTensor
from numpy.typing import NDArray

from common.atomic_write import atomic_path
from engine.base.errors import EngineError
from engine.llama.model import default_model_path
from engine.speculative.setup import shipped_heads
from engine.weights.formats import FORMATS
from engine.weights.quantise import requantise
from tests.benchmarks.large.shapes import PRESETS, Shape, parse_shape
from tests.benchmarks.large.widened_heads import widen_heads

ARCHITECTURE = "llama"
PLAIN: Mapping[str, tuple[GGMLQuantizationType, Any]] = {  # formats that are written without llama.cpp
    "f32": (GGMLQuantizationType.F32, np.float32),
    "f16": (GGMLQuantizationType.F16, np.float16),
    "bf16": (GGMLQuantizationType.BF16, ml_dtypes.bfloat16),
}
BETWEEN = "f16"  # from which llama.cpp makes the others: it holds values of coarser formats to 11 bits
MATRICES = {  # rows and columns
    "token_embd": ("vocabulary", "width"),
    "output": ("vocabulary", "width"),
    "attn_q": ("queries", "width"),
    "attn_k": ("keys", "width"),
    "attn_v": ("values", "width"),
    "attn_output": ("width", "attended"),
    "ffn_gate": ("feed_forward", "width"),
    "ffn_up": ("feed_forward", "width"),
    "ffn_down": ("width", "feed_forward"),
}
NORMS = ("attn_norm", "ffn_norm", "output_norm")
AS_IT_IS = ("rope_freqs",)  # of each pair of numbers in a head
ABOUT = (
    "{small} widened with zeros: its words, in the time of {size} parameters; it tells nothing of quality."
)
OWN_KEYS = ("general.architecture", "general.file_type", "general.size_label", "general.description")


class CannotWiden(Exception):
    """The model or the shape does not allow it; the message says why."""


def made(small: Path, place: Path, shape: Shape, format: str) -> Path:
    """The model in this shape and format, which widen() writes unless the folder has it."""
    path = place / f"{small.stem}-{shape}-{format}.gguf"
    if not path.exists():
        widen(small, path, shape, format)
    return path


def widen(source: Path, target: Path, shape: Shape, format: str) -> int:
    """Write the model in this shape and one of FORMATS; returns the number of its parameters.

    Takes the memory of the largest matrix twice; formats that are not PLAIN take the disk of 16 bits a weight
    meanwhile. Raises CannotWiden, ModelLoadError or OSError.
    """
    small = _Small(source)
    small.check(shape)
    if format in PLAIN:
        with atomic_path(target, durable=False) as part:
            return _write(small, part, shape, format)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        between = Path(folder) / "between.gguf"
        parameters = _write(small, between, shape, BETWEEN)
        requantise(str(between), str(target), format)
    return parameters


@dataclass(frozen=True, slots=True)
class _Tensor:
    """shape: rows first. weights: of the small model; None for zeros."""

    name: str
    shape: tuple[int, ...]
    weights: ReaderTensor | None

    @property
    def kind(self) -> str:
        return self.name.split(".")[-2]


class _Small:
    """A small model's sizes and weights. Raises CannotWiden for one of another architecture."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(str(path))
        self.name = path.stem
        found = self._reader.fields["general.architecture"].contents()
        if found != ARCHITECTURE:
            raise CannotWiden(f"{path}: of architecture {found}, and only {ARCHITECTURE} is widened")
        heads = self.number("attention.head_count")
        self.shape = Shape(
            self.number("embedding_length"),
            heads,
            self.number("feed_forward_length"),
            self.number("block_count"),
        )
        self.kv_heads = self.number("attention.head_count_kv", heads)
        self.key = self.number("attention.key_length", self.shape.width // heads)
        self.value = self.number("attention.value_length", self.shape.width // heads)
        self.epsilon = float(self._field("attention.layer_norm_rms_epsilon").contents())
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def number(self, key: str, default: int | None = None) -> int:
        name = f"{ARCHITECTURE}.{key}"
        if default is not None and name not in self._reader.fields:
            return default
        return int(self._field(key).contents())

    def _field(self, key: str) -> Any:
        return self._reader.fields[f"{ARCHITECTURE}.{key}"]

    @property
    def queries_a_key(self) -> int:
        return self.shape.heads // self.kv_heads

    def check(self, shape: Shape) -> None:
        """Raises CannotWiden."""
        for side in Shape.__dataclass_fields__:
            wanted, least = getattr(shape, side), getattr(self.shape, side)
            if wanted < least:
                raise CannotWiden(f"{side} {wanted} is less than the {least} of {self.name}")
        if shape.heads % self.queries_a_key:
            many = self.queries_a_key
            raise CannotWiden(
                f"{shape.heads} attention heads: must be a multiple of {many}, which share a key"
            )
        for name, tensor in self.tensors.items():
            kind, due = name.split(".")[-2], self.sides(self.shape)
            rows = tuple(int(length) for length in tensor.shape[::-1])
            known = (*MATRICES, *NORMS, *AS_IT_IS)
            if kind not in known or (kind in MATRICES and rows != _of(due, MATRICES[kind])):
                raise CannotWiden(f"{name} of shape {rows} is not known of {ARCHITECTURE} models")

    def sides(self, shape: Shape) -> dict[str, int]:
        """Lengths of rows and columns by their names in MATRICES."""
        kv_heads = shape.heads // self.queries_a_key
        return {
            "vocabulary": int(self.tensors["token_embd.weight"].shape[1]),
            "width": shape.width,
            "queries": shape.heads * self.key,
            "keys": kv_heads * self.key,
            "values": kv_heads * self.value,
            "attended": shape.heads * self.value,
            "feed_forward": shape.feed_forward,
        }

    def metadata(self) -> Iterator[tuple[str, Any, GGUFValueType, GGUFValueType | None]]:
        """Key, value, type, and type of the values of an array."""
        for name, field in self._reader.fields.items():
            if not name.startswith("GGUF.") and name not in OWN_KEYS:
                kind = field.types[0]
                inner = field.types[-1] if kind is GGUFValueType.ARRAY else None
                yield name, field.contents(), kind, inner


def _of(sides: Mapping[str, int], names: Sequence[str]) -> tuple[int, ...]:
    return tuple(sides[name] for name in names)


def _tensors(small: _Small, shape: Shape) -> Iterator[_Tensor]:
    """Of the large model, in the order in which they are written."""
    sides = small.sides(shape)

    def tensor(name: str, weights: ReaderTensor | None) -> _Tensor:
        kind = name.split(".")[-2]
        if kind in MATRICES:
            return _Tensor(name, _of(sides, MATRICES[kind]), weights)
        if kind in NORMS:
            return _Tensor(name, (shape.width,), weights)
        assert weights is not None, "of what is copied layers have none"
        return _Tensor(name, tuple(int(n) for n in weights.shape[::-1]), weights)

    layer = re.compile(r"blk\.0\.(.+)")
    for name, weights in small.tensors.items():
        yield tensor(name, weights)
    for number in range(small.shape.layers, shape.layers):
        for name in small.tensors:
            if match := layer.fullmatch(name):
                yield tensor(f"blk.{number}.{match[1]}", None)


def _write(small: _Small, target: Path, shape: Shape, format: str) -> int:
    """Write it tensor by tensor; returns the number of its parameters."""
    tensors = list(_tensors(small, shape))
    parameters = sum(int(np.prod(tensor.shape)) for tensor in tensors)
    writer = GGUFWriter(str(target), ARCHITECTURE)
    _add_metadata(writer, small, shape, parameters)
    writer.add_file_type(FORMATS[format].number)
    for tensor in tensors:
        kind, number = PLAIN[format if tensor.kind in MATRICES else "f32"]
        size = int(np.prod(tensor.shape)) * np.dtype(number).itemsize
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(number), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        number = PLAIN[format if tensor.kind in MATRICES else "f32"][1]
        writer.write_tensor_data(_values(tensor, small.shape.width, shape.width, number))
    writer.close()
    return parameters


def _values(tensor: _Tensor, before: int, width: int, number: Any) -> NDArray[Any]:
    values = np.zeros(tensor.shape, dtype=number)
    if tensor.weights is not None:
        small = np.asarray(dequantize(tensor.weights.data, tensor.weights.tensor_type), dtype=np.float32)
        if tensor.kind in NORMS:
            small = small * np.float32((before / width) ** 0.5)
        values[tuple(map(slice, small.shape))] = small
    return values


def _add_metadata(writer: GGUFWriter, small: _Small, shape: Shape, parameters: int) -> None:
    for key, value, kind, inner in small.metadata():
        writer.add_key_value(key, value, kind, sub_type=inner)
    size = f"{parameters / 1e9:.2f}B"
    writer.add_size_label(size)
    writer.add_description(ABOUT.format(small=small.name, size=size))
    lengths = {
        Keys.LLM.EMBEDDING_LENGTH: shape.width,
        Keys.LLM.FEED_FORWARD_LENGTH: shape.feed_forward,
        Keys.LLM.BLOCK_COUNT: shape.layers,
        Keys.Attention.HEAD_COUNT: shape.heads,
        Keys.Attention.HEAD_COUNT_KV: shape.heads // small.queries_a_key,
        Keys.Attention.KEY_LENGTH: small.key,
        Keys.Attention.VALUE_LENGTH: small.value,
    }
    replaced = {key.format(arch=ARCHITECTURE): length for key, length in lengths.items()}
    epsilon = Keys.Attention.LAYERNORM_RMS_EPS.format(arch=ARCHITECTURE)
    for key in (*replaced, epsilon):
        writer.kv_data[0].pop(key, None)  # instead of a warning that the writer logs
    for key, length in replaced.items():
        writer.add_uint32(key, length)
    writer.add_float32(epsilon, small.epsilon * small.shape.width / shape.width)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the GGUF to write")
    parser.add_argument("--model", type=Path, default=default_model_path(), help="the small one")
    parser.add_argument("--format", choices=list(FORMATS), default="q8_0")
    names = ", ".join(PRESETS)
    parser.add_argument("--shape", type=parse_shape, default="3B", help=f"{names}, or as the next four")
    for side in Shape.__dataclass_fields__:
        parser.add_argument(f"--{side.replace('_', '-')}", type=int, help="instead of that of --shape")
    parser.add_argument("--heads-out", type=Path, help="write the packaged heads for it, too")
    parser.add_argument("--heads-of", type=Path, help="instead of the packaged heads: those of this file")
    options = parser.parse_args()
    sides = {side: n for side in Shape.__dataclass_fields__ if (n := getattr(options, side)) is not None}
    shape = replace(options.shape, **sides)
    try:
        parameters = widen(options.model, options.out, shape, options.format)
        if options.heads_out:
            heads = options.heads_of or shipped_heads(str(options.model))
            if heads is None:
                raise CannotWiden(f"no heads for {options.model} are packaged: give --heads-of FILE")
            widen_heads(heads, options.heads_out, options.out)
    except (CannotWiden, EngineError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    size = options.out.stat().st_size
    print(
        f"{options.out}: {shape}, {parameters / 1e9:.2f}B parameters, {options.format}, {size / 1e9:.2f} GB"
    )
    print(ABOUT.format(small=options.model.stem, size=f"{parameters / 1e9:.2f}B"))


if __name__ == "__main__":
    main()
