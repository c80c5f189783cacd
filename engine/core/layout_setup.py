"""Makes the layouts of an engine: the contexts, how long a lane is, and whether cells can go between them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from engine.base.config import EngineConfig, RowLimits
from engine.base.errors import ModelLoadError
from engine.core.layouts import LANE_SLACK, LaneLayout, SharedLayout
from engine.host.system_memory import look_at_memory
from engine.llama.context import CELL_PADDING, Context, DecodeError, Rows
from engine.llama.devices import devices, free_device_memory, idle_backends
from engine.llama.model import Model, Shape, on_gpu, read_shape

LEAF_IDS = 16  # sequence ids for the leaves of token trees, all requests together
LANE_SHARE = 5 / 32  # of kv_cells: few requests have more than 1,264 tokens, and 16 lanes of them 472 MB
MEMORY_SHARE = 0.25  # of the memory beside the model's file, for all lanes together
KV_SCALE = {"f16": 1, "f32": 2}  # of Shape.cell_bytes
PROBE_CELLS = 4  # tokens of the sequence that goes from one layout into the other and back

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Layouts:
    """lanes: None where all sequences share a cache. movable: whether cells can go between the two.

    slots: sequences at once; fewer than the config says where memory for the lanes of all could not be had.
    cell_bytes: of one token.
    """

    shared: SharedLayout
    lanes: LaneLayout | None
    movable: bool
    slots: int
    cell_bytes: int

    @property
    def capacity(self) -> int:
        """Tokens that fit into KV cells."""
        return self.shared.capacity + (self.lanes.capacity if self.lanes else 0)

    @property
    def used(self) -> int:
        """Tokens in KV cells."""
        return self.shared.used + (self.lanes.used if self.lanes else 0)

    def close(self) -> None:
        """Give the memory back."""
        self.shared.context.close()
        if self.lanes:
            self.lanes.context.close()


def cell_bytes(config: EngineConfig, shape: Shape) -> int:
    """Of one token in the cache."""
    return shape.cell_bytes * KV_SCALE[config.kv_type]


def memory_for_lanes(config: EngineConfig, shape: Shape, whole: int | None, *, loaded: bool) -> int | None:
    """Bytes beside the model's file, of which lanes take a share; None if unknown.

    whole: memory of this machine, None for enough. Not what is free of it, so that every start of a worker
    makes the same lanes, of which an estimate can tell. Of a GPU it is what is free, since other programs
    keep what they have of it. loaded: whether it has the weights and the shared cache already.
    """
    if on_gpu(config.gpu_layers):
        free = free_device_memory()
        if free is None or loaded:
            return free
        return max(0, free - shape.weight_bytes - config.kv_cells * cell_bytes(config, shape))
    return None if whole is None else max(0, whole - shape.weight_bytes)


def lane_cells(config: EngineConfig, shape: Shape, memory: int | None) -> int:
    """Cells of a lane, in whole paddings; 0 for no lanes.

    memory: bytes beside the model's file, None for enough.
    """
    if config.slots == 1:
        return 0
    longest = min(config.kv_cells, shape.trained_context) + LANE_SLACK
    wanted = min(max(round(LANE_SHARE * config.kv_cells), config.kv_cells // config.slots), longest)
    paddings = max(1, -(-wanted // CELL_PADDING))
    if memory is not None:
        most = int(MEMORY_SHARE * memory / (cell_bytes(config, shape) * config.slots))
        paddings = min(paddings, most // CELL_PADDING)
    return paddings * CELL_PADDING


def make_layouts(config: EngineConfig, model: Model, limits: RowLimits) -> Layouts:
    """The layouts of a new engine. limits: of its calls.

    Raises ModelLoadError without memory for the shared cache. Without memory for the lanes of all slots there
    are fewer of both, and without memory for two lanes there are none.
    """
    shape = read_shape(model.path)
    if config.gpu_layers and (idle := idle_backends()):
        log.warning("llama.cpp finds no GPU for %s: the processor computes", ", ".join(idle))
    if config.gpu_layers < 0 and on_gpu(config.gpu_layers):
        _check_device(model.path, config.kv_cells * cell_bytes(config, shape))
    if config.batch_invariant and on_gpu(config.gpu_layers):
        log.warning("kernels of a GPU depend on the rows of a call: results are near, not equal to the bit")
    plain = not model.can_share_prefixes  # state that is not in cells: no drafts, and no moves
    leaf_ids = 0 if plain or config.batch_invariant else LEAF_IDS
    shared = SharedLayout(
        Context(
            model,
            cells=config.kv_cells,
            seq_ids=config.slots + leaf_ids,
            max_rows=max(limits.shared, limits.prompts),
            threads=config.threads,
            kv_type=config.kv_type,
            companion_row=config.batch_invariant and model.companion_row,
        ),
        seq_ids=config.slots,
        leaf_ids=range(config.slots, config.slots + leaf_ids),
        capacity=config.kv_cells,
        # Attention sums over cells in their order, and a freed cell is filled by whichever token comes next.
        alone=config.batch_invariant,
    )
    lanes = None if plain else _lanes(config, model, limits, shape)
    movable = lanes is not None and _movable(shared.context, lanes.context)
    if lanes and not movable:
        log.warning("cells of this model cannot be moved: requests stay in lanes, and longer ones apart")
    slots = lanes.lanes if lanes else config.slots
    return Layouts(shared, lanes, movable, slots, cell_bytes(config, shape))


def _lanes(config: EngineConfig, model: Model, limits: RowLimits, shape: Shape) -> LaneLayout | None:
    memory = memory_for_lanes(config, shape, look_at_memory().whole, loaded=True)
    cells = lane_cells(config, shape, memory)
    if not cells:
        if config.slots > 1:
            log.warning("too little memory for lanes: requests share one cache, and slow each other")
        return None
    lanes = config.slots
    while lanes > 1:
        try:
            context = _lane_context(config, model, limits, lanes, cells)
        except ModelLoadError as error:
            last = error.message
            lanes //= 2
            continue
        if lanes < config.slots:
            log.warning(
                "%d requests at once instead of %d, for want of memory: %s", lanes, config.slots, last
            )
        more = cells * lanes * cell_bytes(config, shape) / 1e6
        tokens = cells - LANE_SLACK
        log.info("%d lanes of %d tokens; twice as long ones would take %.0f MB more", lanes, tokens, more)
        return LaneLayout(context, lanes=lanes, cells=cells)
    log.warning("no lanes, so requests share one cache and slow each other: %s", last)
    return None


def _lane_context(config: EngineConfig, model: Model, limits: RowLimits, lanes: int, cells: int) -> Context:
    return Context(
        model,
        cells=cells - 1,  # a context adds one
        seq_ids=lanes,
        max_rows=max(limits.lanes, limits.prompts),
        threads=config.threads,
        kv_type=config.kv_type,
        companion_row=config.batch_invariant and model.companion_row,
        streams=True,
    )


def _check_device(path: str, cache_bytes: int) -> None:
    """Raise ModelLoadError for a cache that no GPU here can hold: llama.cpp may abort the process for it."""
    found = devices()
    total = sum(device.total for device in found)
    if found and cache_bytes > total:
        have = f"{', '.join(map(str, found))} has {total / 1e9:.1f}"
        raise ModelLoadError(
            f"{path}: the KV cache takes {cache_bytes / 1e9:.1f} GB, and {have}: lower kv_cells"
        )


def _movable(shared: Context, lanes: Context) -> bool:
    """Whether cells come back unchanged: their format is llama.cpp's own. Both contexts are empty."""
    seq_id = 1  # the same in both, as it is part of the format
    positions = np.arange(PROBE_CELLS, dtype=np.int32)
    ids, none = np.full(PROBE_CELLS, seq_id, dtype=np.int32), np.zeros(PROBE_CELLS, dtype=np.int8)
    try:
        shared.decode(Rows(positions, positions, ids, none))
        there = shared.save(seq_id)
        lanes.restore(there, seq_id)
        back = lanes.save(seq_id)
        return bool(np.array_equal(back.for_streams(there.streams), there.state))
    except DecodeError:
        return False
    finally:
        shared.truncate(seq_id, 0)
        lanes.truncate(seq_id, 0)
