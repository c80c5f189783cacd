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
from engine.llama.devices import devices, free_device_memory
from engine.llama.model import Model, Shape, on_gpu, read_shape

LEAF_IDS = 16  # sequence ids for the leaves of token trees, all requests together
LANE_SHARE = 5 / 32  # of kv_cells: few requests have more than 1,264 tokens, and 16 lanes of them 472 MB
MEMORY_SHARE = 0.25  # of the free memory, for all lanes together
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


def lane_cells(config: EngineConfig, trained_context: int, cell_bytes: int, available: int | None) -> int:
    """Cells of a lane, in whole paddings; 0 for no lanes.

    cell_bytes: of one token in the cache. available: bytes of free memory, None if unknown.
    """
    if config.slots == 1:
        return 0
    longest = min(config.kv_cells, trained_context) + LANE_SLACK
    wanted = min(max(round(LANE_SHARE * config.kv_cells), config.kv_cells // config.slots), longest)
    paddings = max(1, -(-wanted // CELL_PADDING))
    if available is not None:
        most = int(MEMORY_SHARE * available / (cell_bytes * config.slots))
        paddings = min(paddings, most // CELL_PADDING)
    return paddings * CELL_PADDING


def make_layouts(config: EngineConfig, model: Model, limits: RowLimits) -> Layouts:
    """The layouts of a new engine. limits: of its calls.

    Raises ModelLoadError without memory for the shared cache. Without memory for the lanes of all slots there
    are fewer of both, and without memory for two lanes there are none.
    """
    shape = read_shape(model.path)
    cell_bytes = shape.cell_bytes * KV_SCALE[config.kv_type]
    if config.gpu_layers < 0 and on_gpu(config.gpu_layers):
        _check_device(model.path, config.kv_cells * cell_bytes)
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
            companion_row=config.batch_invariant,
        ),
        seq_ids=config.slots,
        leaf_ids=range(config.slots, config.slots + leaf_ids),
        capacity=config.kv_cells,
        # Attention sums over cells in their order, and a freed cell is filled by whichever token comes next.
        alone=config.batch_invariant,
    )
    available = free_device_memory() if on_gpu(config.gpu_layers) else _free_memory(shape)
    lanes = None if plain else _lanes(config, model, limits, cell_bytes, available)
    movable = lanes is not None and _movable(shared.context, lanes.context)
    if lanes and not movable:
        log.warning("cells of this model cannot be moved: requests stay in lanes, and longer ones apart")
    return Layouts(shared, lanes, movable, lanes.lanes if lanes else config.slots, cell_bytes)


def _lanes(
    config: EngineConfig, model: Model, limits: RowLimits, cell_bytes: int, available: int | None
) -> LaneLayout | None:
    cells = lane_cells(config, model.trained_context, cell_bytes, available)
    if not cells:
        if config.slots > 1:
            log.warning("too little free memory for lanes: requests share one cache, and slow each other")
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
        more = cells * lanes * cell_bytes / 1e6
        log.info("%d lanes of %d tokens; twice as long ones would take %.0f MB more", lanes, cells, more)
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
        companion_row=config.batch_invariant,
        streams=True,
    )


def _check_device(path: str, cache_bytes: int) -> None:
    """Raise ModelLoadError for a cache that no GPU here can hold: llama.cpp may abort the process for it."""
    found = devices()
    total = sum(device.total for device in found)
    if cache_bytes > total:
        have = f"{', '.join(map(str, found))} has {total / 1e9:.1f}"
        raise ModelLoadError(
            f"{path}: the KV cache takes {cache_bytes / 1e9:.1f} GB, and {have}: lower kv_cells"
        )


def _free_memory(shape: Shape) -> int | None:
    """Bytes beside the weights, whose pages count as free; None where psutil is not installed."""
    try:
        return max(0, look_at_memory().available - shape.weight_bytes)
    except ImportError:
        return None


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
