"""Settings of an engine. Every default is a named constant with its unit and reason."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_SLOTS = 16  # requests decoded together; beyond this two cores gain little per row
DEFAULT_KV_CELLS = 8192  # tokens held for all requests together; 16 slots of 512, or fewer longer ones
# An idle engine waits so long for more requests: too short to notice, long enough to batch a burst.
DEFAULT_BATCH_WINDOW_MS = 10.0
DEFAULT_PREFIX_CACHE_TOKENS = 2048  # four long instructions
AUTO, AS_SHIPPED, BF16 = "auto", "as_shipped", "bf16"  # number format in which weights are computed
FOR_THIS_MACHINE = "for_this_machine"  # the format saved by engine/weights/saved_format.py
WEIGHTS = (AUTO, AS_SHIPPED, BF16, FOR_THIS_MACHINE)
TILE_ROWS = 64  # from here on llama.cpp's CPU attention works in tiles of 64 rows and 64 cells
CPU_PREFILL_CHUNK = 256  # tokens: four tiles, 0.8 s of a small model on two cores
CPU_LANE_ROWS = 256  # more gain nothing: the work of reading the weights is shared by then
GPU_PREFILL_CHUNK = 512  # tokens: fewer leave a GPU mostly idle


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    model: path of a GGUF; None is the packaged default model. weights: computed as_shipped in the file,
    unpacked to bf16, or auto: unpacked where that is measured to be faster (weights/format_selection.py), but
    as shipped with batch_invariant; for_this_machine: as chosen before (weights/saved_format.py). slots:
    requests running at once. kv_cells: tokens of all that share a cache, and so of the longest request,
    prompt and output; lanes are beside it (core/layout_setup.py). prefill_chunk: prompt tokens a step, which
    the running requests wait for; 0 lets the engine choose. On a CPU more than 64 count in whole tiles of 64.
    kv_type: number format of the KV cache and of attention: f16, or f32 (slower, twice the memory). threads:
    0 is every core this process may use. batch_invariant: bit-identical results whatever shares the batch,
    in a process whose engines all have it; see docs/reference/benchmarks.md for its price.
    prefix_cache_bytes: memory for prompts of ended requests, with which later ones may begin; None is that of
    2,048 tokens. speculation: draft tokens where that is measured to save time; results stay the same.
    heads: draft heads for this model, a file or folder; None is the ones that come with the package, if they
    are for this model. chat_template: a known one's name, or a file (see engine/text/chat_templates.py); None
    is the model's own.
    """

    model: str | None = None
    weights: str = AUTO
    slots: int = DEFAULT_SLOTS
    kv_cells: int = DEFAULT_KV_CELLS
    batch_window_ms: float = DEFAULT_BATCH_WINDOW_MS
    prefill_chunk: int = 0
    prefix_sharing: bool = True
    prefix_cache_bytes: int | None = None
    batch_invariant: bool = False
    kv_type: str = "f16"
    threads: int = 0
    gpu_layers: int = -1
    speculation: bool = True
    heads: str | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        checks = (
            ("weights", self.weights in WEIGHTS, f"must be one of {', '.join(WEIGHTS)}"),
            ("slots", 1 <= self.slots <= 64, "must be between 1 and 64"),
            ("kv_cells", self.kv_cells >= 64, "must be at least 64"),
            ("batch_window_ms", 0 <= self.batch_window_ms <= 1000, "must be between 0 and 1000"),
            ("prefill_chunk", self.prefill_chunk >= 0, "must be 0 (automatic) or more"),
            (
                "slots",
                not self.batch_invariant or self.slots < TILE_ROWS - 1,
                f"must be below {TILE_ROWS - 1} with batch_invariant",
            ),
            ("prefix_cache_bytes", (self.prefix_cache_bytes or 0) >= 0, "must not be negative"),
            ("kv_type", self.kv_type in ("f16", "f32"), "must be f16 or f32"),
            (
                "kv_type",
                self.kv_type == "f16" or not self.batch_invariant,
                "must be f16 with batch_invariant on",
            ),
            ("threads", self.threads >= 0, "must be 0 (all cores) or more"),
        )
        for name, holds, rule in checks:
            if not holds:
                raise ValueError(f"{name} {rule}")

    def row_limits(self, on_gpu: bool) -> RowLimits:
        """On a CPU, 64 or more rows of one cache are computed in tiles: each tile that any of its rows needs.

        That is fast for a long prompt, whose calls are whole tiles, and 2.5 times slower for many requests
        that share a cache. Batch-invariant results need the same kernels for all rows, so there no call has
        64 rows.
        """
        if on_gpu and not self.batch_invariant:
            chunk = self.prefill_chunk or GPU_PREFILL_CHUNK
            return RowLimits(self.slots + chunk, self.slots + chunk, chunk)
        small = max(TILE_ROWS - 1, self.slots + 1)
        if self.batch_invariant:
            return RowLimits(small, small, min(self.prefill_chunk or TILE_ROWS, TILE_ROWS - 1))
        chunk = self.prefill_chunk or CPU_PREFILL_CHUNK
        if chunk >= TILE_ROWS:
            chunk -= chunk % TILE_ROWS
        return RowLimits(small, max(small, CPU_LANE_ROWS), chunk)


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Rows of a decode call at most: in the shared cache, in lanes, and of prompts before it."""

    shared: int
    lanes: int
    prompts: int
