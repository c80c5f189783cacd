"""Well-known instruct models, and what each would need and give on this machine. Nothing is fetched.

Sizes are those of the published files, rounded; shapes are those of the published configurations.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.base.config import EngineConfig
from engine.llama.model import Model, Shape, default_model_path
from engine.tools.memory_estimate import needed_by
from engine.weights.format_selection import largest_bytes, time_formats

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class KnownModel:
    """source: as `medusaq models add` takes it; None where the GGUF is made from a checkpoint.

    tools: its chat template has them. attention: attention heads, those of keys and values, and the width of
    each. feed_forward: inner width of the feed-forward layers. checkpoint, heads: as `medusaq compile` and
    `medusaq slice-heads` take them.
    """

    name: str
    source: str | None
    licence: str
    parameters_m: int
    file_mb: int
    tools: bool
    width: int
    layers: int
    attention: tuple[int, int, int]
    feed_forward: int
    vocab_size: int
    context: int
    checkpoint: str | None = None
    heads: str | None = None

    @property
    def shape(self) -> Shape:
        heads, kv_heads, head_width = self.attention
        return Shape(
            architecture="",
            width=self.width,
            vocab_size=self.vocab_size,
            trained_context=self.context,
            cell_bytes=2 * 2 * self.layers * kv_heads * head_width,
            state_bytes=0,
            layers=self.layers,
            heads=heads,
            feed_forward=self.feed_forward,
            parameters=self.parameters_m * MB,
            weight_bytes=self.file_mb * MB,
        )


QWEN_VOCAB, LLAMA_VOCAB, SMOL_VOCAB = 151_936, 128_256, 49_152
APACHE, LLAMA_3_2 = "Apache-2.0", "Llama 3.2 Community"
KNOWN = (
    KnownModel(
        "smollm2-360m",
        "hf:HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
        APACHE,
        *(362, 386, False, 960, 32, (15, 5, 64), 2560, SMOL_VOCAB, 8192),
    ),
    KnownModel(
        "qwen2.5-0.5b",
        "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
        APACHE,
        *(494, 491, True, 896, 24, (14, 2, 64), 4864, QWEN_VOCAB, 32_768),
    ),
    KnownModel(
        "llama-3.2-1b",
        "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
        LLAMA_3_2,
        *(1236, 808, True, 2048, 16, (32, 8, 64), 8192, LLAMA_VOCAB, 131_072),
    ),
    KnownModel(
        "qwen2.5-1.5b",
        "hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M",
        APACHE,
        *(1544, 1117, True, 1536, 28, (12, 2, 128), 8960, QWEN_VOCAB, 32_768),
    ),
    KnownModel(
        "smollm2-1.7b",
        "hf:HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M",
        APACHE,
        *(1711, 1056, False, 2048, 24, (32, 32, 64), 8192, SMOL_VOCAB, 8192),
    ),
    KnownModel(
        "llama-3.2-3b",
        "hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        LLAMA_3_2,
        *(3213, 2019, True, 3072, 28, (24, 8, 128), 8192, LLAMA_VOCAB, 131_072),
    ),
    KnownModel(
        "qwen3-4b",
        "hf:unsloth/Qwen3-4B-Instruct-2507-GGUF:Q4_K_M",
        APACHE,
        *(4022, 2497, True, 2560, 36, (32, 8, 128), 9728, QWEN_VOCAB, 262_144),
    ),
    KnownModel(
        "mistral-7b",
        "hf:bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M",
        APACHE,
        *(7248, 4373, True, 4096, 32, (32, 8, 128), 14_336, 32_768, 32_768),
    ),
    KnownModel(
        "vicuna-7b",
        None,
        "Llama 1, non-commercial",
        *(6738, 4081, False, 4096, 32, (32, 32, 128), 11_008, 32_000, 2048),
        checkpoint="lmsys/vicuna-7b-v1.3",
        heads="FasterDecoding/medusa-vicuna-7b-v1.3",
    ),
    KnownModel(
        "llama-3.1-8b",
        "hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
        "Llama 3.1 Community",
        *(8030, 4921, True, 4096, 32, (32, 8, 128), 14_336, LLAMA_VOCAB, 131_072),
    ),
)


def memory_of(model: KnownModel, config: EngineConfig, whole: int | None) -> int:
    """Bytes that a worker of this model needs at most; whole: as for memory_estimate.needed()."""
    shape = model.shape
    return needed_by(shape, largest_bytes(config, shape), config, whole).total


def weight_bytes_per_s(config: EngineConfig) -> float:
    """How fast one request goes through weights here, by the packaged model's steps: a step reads them all.

    Raises ModelLoadError or DecodeError.
    """
    model = Model(default_model_path(), config.gpu_layers)
    [timing] = time_formats([model], config)
    return model.size / timing.alone
