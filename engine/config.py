"""How an engine is set up. Every default is a named constant with its unit and reason."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_SLOTS = 16  # requests decoded together; beyond this two cores gain nothing per row
DEFAULT_KV_CELLS = 8192  # tokens held for all requests together; 16 slots of 512, or fewer longer ones
DEFAULT_BATCH_WINDOW_MS = (
    10.0  # wait for company when idle: unnoticed by a person, fills a burst's first step
)
DEFAULT_PREFIX_CACHE_CELLS = 2048  # cells of ended prompts kept for sharing; a quarter of the default cache
CPU_ROWS = 63  # tokens in one decode call: from 64 on, llama.cpp's CPU attention walks every tile of 64 cells
# that any of the rows attends to, which made a call of 15 requests and a chunk 2.5 times slower
GPU_ROWS = 512  # a GPU is far from busy below this


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    model: path of a GGUF; None is the packaged default model.
    slots: requests running at once. kv_cells: tokens of all of them together, prompt and output.
    prefill_chunk: prompt tokens a step next to the running requests; 0 lets the engine choose.
    threads: 0 is every core this process may use. batch_invariant: bit-identical results whatever
    shares the batch; see the README for its price.
    """

    model: str | None = None
    slots: int = DEFAULT_SLOTS
    kv_cells: int = DEFAULT_KV_CELLS
    batch_window_ms: float = DEFAULT_BATCH_WINDOW_MS
    prefill_chunk: int = 0
    prefix_sharing: bool = True
    prefix_cache_cells: int = DEFAULT_PREFIX_CACHE_CELLS
    batch_invariant: bool = False
    threads: int = 0
    gpu_layers: int = -1

    def __post_init__(self) -> None:
        checks = (
            ("slots", 1 <= self.slots <= 64, "must be between 1 and 64"),
            ("kv_cells", self.kv_cells >= 64, "must be at least 64"),
            ("batch_window_ms", 0 <= self.batch_window_ms <= 1000, "must be between 0 and 1000"),
            ("prefill_chunk", self.prefill_chunk >= 0, "must be 0 (automatic) or more"),
            (
                "batch_invariant",
                not self.batch_invariant or self.slots + self.prefill_chunk <= CPU_ROWS - 1,
                f"allows {CPU_ROWS - 1} rows a step: lower slots or prefill_chunk",
            ),
            ("prefix_cache_cells", self.prefix_cache_cells >= 0, "must not be negative"),
            ("threads", self.threads >= 0, "must be 0 (all cores) or more"),
        )
        for name, holds, rule in checks:
            if not holds:
                raise ValueError(f"{name} {rule}")

    def max_rows(self, on_gpu: bool) -> int:
        """Tokens in one decode call."""
        if self.prefill_chunk:
            return self.slots + self.prefill_chunk
        if self.batch_invariant or not on_gpu:
            return max(CPU_ROWS, self.slots + 1)
        return GPU_ROWS
