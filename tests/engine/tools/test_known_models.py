"""Models that are recommended: their sizes agree with each other, and their memory with the estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.stack.model_registration import HUB
from compiling.source.hub import looks_like_a_name
from engine.base.config import EngineConfig
from engine.llama.model import default_model_path, read_shape
from engine.tools.known_models import KNOWN, KnownModel, memory_of, weight_bytes_per_s
from engine.tools.memory_estimate import needed
from engine.tools.model_registry import check_name

AS_SHIPPED = EngineConfig(weights="as_shipped", speculation=False)
PACKAGED = KnownModel(
    "smollm2-135m", "", "Apache-2.0", 135, 98, False, 576, 30, (9, 3, 64), 1536, 49_152, 8192
)


def parameters(model: KnownModel) -> int:
    """Of a Llama with these sizes: the embeddings once, attention and feed-forward of each layer."""
    heads, kv_heads, head_width = model.attention
    attention = 2 * model.width * (heads + kv_heads) * head_width
    return model.vocab_size * model.width + model.layers * (attention + 3 * model.width * model.feed_forward)


@pytest.mark.parametrize("model", KNOWN, ids=lambda model: model.name)
def test_its_sizes_agree(model: KnownModel) -> None:
    check_name(model.name)
    heads, kv_heads, _ = model.attention
    assert heads % kv_heads == 0
    own_head = model.vocab_size * model.width
    least, most = 0.98 * parameters(model), 1.02 * (parameters(model) + own_head)
    assert least < model.parameters_m * 1e6 < most, "with an lm_head of its own, or without"
    bits = 8 * model.file_mb / model.parameters_m
    assert 4.7 < bits < 8.7, "Q4_K_M, or Q8_0 where rows are no multiple of 256"
    repository, _, _ = (model.source or f"{HUB}{model.checkpoint}").removeprefix(HUB).partition(":")
    assert looks_like_a_name(repository)


def test_memory_is_estimated_as_for_a_file() -> None:
    shape, packaged = PACKAGED.shape, read_shape(default_model_path())
    sizes = ("width", "vocab_size", "trained_context", "cell_bytes", "layers", "heads", "feed_forward")
    assert {size: getattr(shape, size) for size in sizes} == {size: getattr(packaged, size) for size in sizes}
    assert memory_of(PACKAGED, AS_SHIPPED, None) == pytest.approx(needed(AS_SHIPPED).total, rel=0.01)
    unpacked = memory_of(PACKAGED, replace(AS_SHIPPED, weights="auto"), None)
    assert unpacked - memory_of(PACKAGED, AS_SHIPPED, None) == pytest.approx(270e6 - 98e6, rel=0.01)


@pytest.mark.slow
def test_the_speed_is_that_of_the_packaged_models_steps() -> None:
    fast = weight_bytes_per_s(replace(AS_SHIPPED, slots=1))
    assert 1e8 < fast < 1e12
