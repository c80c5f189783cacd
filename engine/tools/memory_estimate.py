"""How much memory a worker needs to serve a model, from what its file says of itself: nothing is loaded.

Counted is the memory of this machine that is in use under full load. Memory of a GPU is not, and of layers
on one neither their weights nor their cache. The file's own pages count once, also where llama.cpp
computes from a rearranged copy of them: the system takes those back when it needs them. What llama.cpp
reserves for calls that never come, of a logits row for every token of a prompt, takes no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.base.config import DEFAULT_PREFIX_CACHE_TOKENS, EngineConfig
from engine.base.errors import ModelLoadError
from engine.core.layout_setup import LEAF_IDS, cell_bytes, lane_cells, memory_for_lanes
from engine.llama.context import padded
from engine.llama.model import Shape, default_model_path, on_gpu, read_shape
from engine.medusa.layouts import HeadsLoadError, files_of, is_pickle
from engine.medusa.loader import check_runtime
from engine.speculative.setup import shipped_for_width
from engine.weights.format_selection import computed_bytes

MB = 1_000_000
PROCESS_BYTES = 150 * MB  # a worker with Celery and llama.cpp, without a model, that has run some requests
RUNTIME_BYTES = 80 * MB  # by which the process grows when it runs heads, these themselves left out
TORCH_BYTES = 250 * MB  # by which it grows when it reads them from pickles
FLOAT_BYTES = 4

WEIGHTS, CACHE, PREFIXES = "weights", "KV cache", "prefix cache"
BUFFERS, HEADS, PROCESS = "compute buffers", "heads", "the process"


@dataclass(frozen=True, slots=True)
class Needed:
    """Bytes, by what they are for."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def largest(self) -> list[tuple[str, int]]:
        """The parts, the largest first."""
        return sorted(self.parts.items(), key=lambda part: -part[1])


def needed(config: EngineConfig, whole: int | None = None) -> Needed:
    """What an engine with these settings needs in a worker. Raises ModelLoadError.

    whole: bytes of memory of this machine, of which lanes take a share at most; None: enough.
    """
    path = config.model or default_model_path()
    shape = read_shape(path)
    return needed_by(shape, computed_bytes(config, path, shape), config, whole)


def needed_by(shape: Shape, weight_bytes: int, config: EngineConfig, whole: int | None) -> Needed:
    """The same, for a model of this shape. weight_bytes: in the format in which it is computed."""
    here = _share_here(config, shape)
    limits = config.row_limits(on_gpu(config.gpu_layers))
    cell = cell_bytes(config, shape)
    memory = None if on_gpu(config.gpu_layers) else memory_for_lanes(config, shape, whole, loaded=False)
    lane = 0 if shape.state_bytes else lane_cells(config, shape, memory)
    ids = config.slots + LEAF_IDS + 1  # that of the companion row
    cache = (padded(config.kv_cells) + config.slots * lane) * cell + (config.slots + 1) * shape.state_bytes
    contexts = [(max(limits.shared, limits.prompts), padded(config.kv_cells))]
    contexts += [(max(limits.lanes, limits.prompts), lane)] if lane else []
    layers = sum(rows * _layer(shape, cells, config.kv_type) for rows, cells in contexts)
    outputs = ids * (shape.vocab_size + shape.width)
    return Needed(
        {
            WEIGHTS: round(here * weight_bytes),
            CACHE: round(here * cache),
            PREFIXES: _prefixes(config, shape),
            BUFFERS: round(here * (layers + outputs) + outputs) * FLOAT_BYTES,
            HEADS: _heads(config, shape),
            PROCESS: PROCESS_BYTES,
        }
    )


def _share_here(config: EngineConfig, shape: Shape) -> float:
    """How much of the layers is computed by the CPU."""
    if not on_gpu(config.gpu_layers):
        return 1.0
    return 0.0 if config.gpu_layers < 0 else max(0.0, 1 - config.gpu_layers / (shape.layers + 1))


def _prefixes(config: EngineConfig, shape: Shape) -> int:
    """Bytes of the prefix cache, which is in the memory of this machine wherever the layers are."""
    if shape.state_bytes or not config.prefix_sharing:
        return 0
    budget = config.prefix_cache_bytes
    return DEFAULT_PREFIX_CACHE_TOKENS * cell_bytes(config, shape) if budget is None else budget


def _layer(shape: Shape, cells: int, kv_type: str) -> float:
    """Numbers that a row of a call takes while it goes through a layer."""
    # Attention takes a mask, in both number formats, and without flash attention the scores of all heads.
    scores = 1.5 if kv_type == "f16" else shape.heads + 2
    return scores * cells + 3 * shape.feed_forward + 4 * shape.width


def _heads(config: EngineConfig, shape: Shape) -> int:
    if not config.speculation:
        return 0
    try:
        paths = [Path(config.heads)] if config.heads else shipped_for_width(shape.width)
        if not paths:
            return 0
        check_runtime()
        files = [file for path in paths for file in files_of(path)]
        size = sum(file.stat().st_size for file in files)
    except (HeadsLoadError, OSError) as error:
        if config.heads is None:
            return 0
        raise ModelLoadError(f"{config.heads}: {error}") from error
    code = RUNTIME_BYTES + (TORCH_BYTES if any(map(is_pickle, files)) else 0)
    # A matrix is read as 32-bit numbers before it is packed; heads with a draft vocabulary read a part of it.
    return code + size + shape.vocab_size * shape.width * FLOAT_BYTES
