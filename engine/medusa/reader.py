"""Reads draft heads as numpy arrays by key. Executes nothing from the file."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # also teaches numpy, and with it safetensors, the name bfloat16
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from engine.medusa.layouts import (
    HeadsLoadError,
    Layout,
    files_of,
    first_line,
    is_pickle,
    keys_of_heads,
    read_config,
    recognise,
)

Array = NDArray[Any]
FLOATS = tuple(map(np.dtype, (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)))
TOKEN_IDS = tuple(map(np.dtype, (np.int32, np.int64)))


class HeadsFile:
    """The weights of the heads, their layout, and what stands beside them: config.json, metadata.

    Pickles need torch. Raises HeadsLoadError.
    """

    def __init__(self, path: Path) -> None:
        self.config = read_config(path / "config.json") if path.is_dir() else {}
        self.metadata: dict[str, str] = {}
        files = files_of(path)
        try:
            self._arrays = _of_pickles(files) if is_pickle(files[0]) else self._of_safetensors(files)
        except HeadsLoadError:
            raise
        except pickle.UnpicklingError as error:
            raise HeadsLoadError("refused: its pickle is damaged or holds more than weights") from error
        except Exception as error:  # readers of damaged files raise anything
            raise HeadsLoadError(f"cannot be read: {first_line(error)}") from error
        self.layout: Layout = recognise(self._arrays)

    def _of_safetensors(self, files: list[Path]) -> dict[str, Array]:
        shards = {file: safe_open(file, framework="numpy") for file in files}
        places = {key: shards[file] for key, file in _by_key(shards).items()}
        arrays = {key: places[key].get_tensor(key) for key in keys_of_heads(places)}
        for key in arrays:
            self.metadata |= places[key].metadata() or {}
        return arrays

    def shape(self, key: str) -> tuple[int, ...]:
        return self._arrays[key].shape

    def ids(self, key: str) -> NDArray[np.int64]:
        """A list of token ids."""
        array = self._arrays[key]
        if array.ndim != 1 or array.dtype not in TOKEN_IDS or not len(array):
            raise HeadsLoadError(f"{key} is no list of token ids")
        return array.astype(np.int64)

    def floats(self, key: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A weight of exactly this shape."""
        array = self._arrays[key]
        if array.shape != shape:
            raise HeadsLoadError(f"{key} has the shape {array.shape} where {shape} is due")
        if array.dtype not in FLOATS:
            raise HeadsLoadError(f"{key} holds no plain numbers, but {array.dtype}")
        with np.errstate(over="ignore"):
            array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            raise HeadsLoadError(f"{key} holds values that are not finite")
        return array


def _of_pickles(files: list[Path]) -> dict[str, Array]:
    try:
        import torch
    except ImportError as error:
        raise HeadsLoadError(
            "a pickle, which only torch reads: pip install 'medusaq[train]', or run medusaq export-heads "
            "where it is installed"
        ) from error
    loaded = {
        file: torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        for file in files
    }
    found = _by_key(loaded)
    tensors = {key: loaded[found[key]][key] for key in keys_of_heads(found)}
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise HeadsLoadError("holds other things than weights by their names")
    arrays = {}
    for key, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise HeadsLoadError(f"{key} holds no plain numbers, but {tensor.layout}")
        plain = tensor.detach()
        if plain.dtype is torch.bfloat16:  # unknown to numpy proper
            arrays[key] = plain.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        else:
            arrays[key] = plain.numpy()
    return arrays


def _by_key(files: Mapping[Path, Any]) -> dict[str, Path]:
    """Which file holds a key. Raises HeadsLoadError when two do: then they are no parts of one."""
    found: dict[str, Path] = {}
    for file, content in files.items():
        for key in content.keys():  # noqa: SIM118
            if key in found:
                raise HeadsLoadError(
                    f"{found[key].name} and {file.name} both hold {key[:80]}: name one of them"
                )
            found[key] = file
    return found
