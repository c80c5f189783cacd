"""A continuous-batching engine for GGUF models. Nothing here knows of HTTP, Redis or Celery."""

import os

# Before llama.cpp loads its OpenMP: a thread that waits for the other spins this often, then sleeps. By
# default it spins on for milliseconds, and when another process takes a core, it burns the time that process
# would need: two engines on the same cores become several times slower, and the whole system on two cores a
# little. The price is paid by a lone request to a small model, whose calls end too soon for a sleep to be
# cheap; see docs/explanation/speculation.md. Who has set it already knows better.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Before ONNX Runtime or the hub's client loads, here and in child processes: the first uploads figures to its
# vendor, the second adds them to its requests.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")

from engine.base.config import EngineConfig
from engine.base.errors import DecodeFailed, EngineClosed, EngineError, ModelLoadError, RequestRefused
from engine.base.request import (
    Acceptance,
    Completion,
    Decoding,
    Drafted,
    FinishReason,
    OnText,
    Request,
    SamplingParams,
    TextDelta,
    Timing,
    TokenLogprob,
)
from engine.core.engine import ModelInfo
from engine.core.metrics import EngineMetrics
from engine.medusa.layouts import HeadsLoadError
from engine.sampling.grammar import response_grammar
from engine.service import EngineService, load

__all__ = [
    "Acceptance",
    "Completion",
    "DecodeFailed",
    "Decoding",
    "Drafted",
    "EngineClosed",
    "EngineConfig",
    "EngineError",
    "EngineMetrics",
    "EngineService",
    "FinishReason",
    "HeadsLoadError",
    "ModelInfo",
    "ModelLoadError",
    "OnText",
    "Request",
    "RequestRefused",
    "SamplingParams",
    "TextDelta",
    "Timing",
    "TokenLogprob",
    "load",
    "response_grammar",
]
