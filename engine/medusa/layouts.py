"""Recognises the layout of a file of draft heads from its keys alone.

- FasterDecoding/Medusa v1: {head}.{layer}.linear.weight|bias, and {head}.{layers}.weight, its own lm_head.
- v2, and ours: no own lm_heads, the model's serves all heads; ours may have a token_map.
- Medusa-1.0 full models: either of these below medusa_head., beside a backbone that is ignored here.
- vLLM: blocks.{head}.layers.{layer}.weight|bias, lm_heads.{head}.weight (a lone one serves all), token_map.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import EngineError

TOKEN_MAP = "token_map"  # the token ids of an lm_head that is cut to the frequent ones

# File patterns of heads in a folder: all files of the first pattern that matches are used, as shards.
FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "*.safetensors", "*.pt", "pytorch_model*.bin")

_PREFIX = re.compile(r"(?:.*\.)?medusa_heads?\.")
_LAYER = re.compile(
    r"blocks\.(\d{1,3})\.layers\.(\d{1,3})\.(weight|bias)|(\d{1,3})\.(\d{1,3})\.linear\.(weight|bias)"
)
_LM_HEAD = re.compile(r"lm_heads\.(\d{1,3})\.weight|(\d{1,3})\.(\d{1,3})\.weight")


class HeadsLoadError(EngineError):
    """The heads file is missing, damaged, hostile, of no known layout, or not for this model."""

    code = "heads_load_failed"


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys of the weights: layers[head][layer] = (weight, bias or None)."""

    layers: list[list[tuple[str, str | None]]]
    lm_heads: list[str]  # one a head, or one for all, or none: the model's serves all
    token_map: str | None


def files_of(path: Path) -> list[Path]:
    """The file itself, or those of a folder. Raises HeadsLoadError."""
    if not path.is_dir():
        if not path.is_file():
            raise HeadsLoadError("no such file or folder")
        return [path]
    for pattern in FILES:
        if found := sorted(path.glob(pattern)):
            return found
    raise HeadsLoadError(f"a folder without heads: none of {', '.join(FILES)} in it")


def is_pickle(file: Path) -> bool:
    """Whether torch has to read it."""
    return file.suffix not in (".safetensors", ".onnx")


def read_config(path: Path) -> dict[str, Any]:
    """A config.json; empty when there is none. Raises HeadsLoadError."""
    try:
        config = json.loads(path.read_bytes()) if path.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise HeadsLoadError(f"config.json cannot be read: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise HeadsLoadError("config.json holds no object")
    return config


def first_line(error: Exception) -> str:
    """What an error says, on one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def keys_of_heads(keys: Collection[str]) -> list[str]:
    """The keys of heads: in a full model those below medusa_head., otherwise all."""
    prefixed = [key for key in keys if _PREFIX.match(key)]
    return prefixed + [key for key in keys if key == TOKEN_MAP] if prefixed else list(keys)


def recognise(keys: Iterable[str]) -> Layout:
    """The layout of these keys. Raises HeadsLoadError for an unknown or incomplete one."""
    layers: dict[tuple[int, int], dict[str, str]] = {}
    lm_heads: dict[int, str] = {}
    places: set[int] = set()  # of v1's lm_heads, after the last layer
    token_map = None
    for key in keys:
        name = _PREFIX.sub("", key)
        if match := _LAYER.fullmatch(name):
            head, layer, kind = filter(None, match.groups())
            layers.setdefault((int(head), int(layer)), {})[kind] = key
        elif match := _LM_HEAD.fullmatch(name):
            head, *place = filter(None, match.groups())
            lm_heads[int(head)] = key
            places.update(map(int, place))
        elif name == TOKEN_MAP:
            token_map = key
        else:
            raise HeadsLoadError(f"weight {key[:80]!r} belongs to no known layout of draft heads")
    if not layers:
        raise HeadsLoadError("no draft heads in it")
    heads, depth = (1 + max(indices) for indices in zip(*layers, strict=True))
    for head in range(heads):
        for layer in range(depth):
            if "weight" not in layers.get((head, layer), ()):
                raise HeadsLoadError(f"head {head} of {heads} lacks the weight of layer {layer} of {depth}")
    if places - {depth}:
        raise HeadsLoadError(f"an lm_head is in place {min(places - {depth})} of a head of {depth} layers")
    shared = set(lm_heads) == {0} and not places
    if lm_heads and not shared and sorted(lm_heads) != list(range(heads)):
        raise HeadsLoadError(f"{len(lm_heads)} of {heads} heads have an lm_head of their own")
    return Layout(
        layers=[[_pair(layers[head, layer]) for layer in range(depth)] for head in range(heads)],
        lm_heads=[lm_heads[head] for head in sorted(lm_heads)],
        token_map=token_map,
    )


def _pair(keys: dict[str, str]) -> tuple[str, str | None]:
    return keys["weight"], keys.get("bias")
