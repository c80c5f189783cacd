"""What an ONNX file of draft heads looks like from outside: its inputs, outputs, and the sizes it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from engine.medusa.layouts import HeadsLoadError

HIDDEN, WHICH_HEAD, WHICH_TOP = "hidden", "head", "top"  # inputs of the graph
PATH = "path"  # further input of heads that see what was drafted
TOKENS, PROBABILITIES = "tokens", "probabilities"  # its outputs
ABOUT = "medusaq_heads"  # key in the file's metadata: its sizes, as JSON
BITS = (8, 4)  # of the lm_heads' weights
SUFFIX = ".onnx"


@dataclass(frozen=True, slots=True)
class Sizes:
    """rows: tokens that each head can guess. bits: of a weight of the lm_heads. sees_path: 1 for heads that
    read the draft tokens before theirs."""

    heads: int
    layers: int
    width: int
    vocab_size: int
    rows: int
    bits: int
    sees_path: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Sizes:
        """Of a file. Raises HeadsLoadError."""
        try:
            about = json.loads(metadata[ABOUT])
            sizes = cls(
                **{field.name: int(about[field.name]) for field in fields(cls) if field.name in about}
            )
        except (KeyError, ValueError, TypeError) as error:
            raise HeadsLoadError(
                "no draft heads in it: medusaq export-heads writes files that have"
            ) from error
        if sizes.heads < 1:
            raise HeadsLoadError("no draft heads in it")
        return sizes
