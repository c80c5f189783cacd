"""A continuous-batching engine for GGUF models. Nothing here knows of HTTP, Redis or Celery."""

import os

from common.llama_build import variables

# Must be set before llama.cpp loads OpenMP: a waiting thread spins this often, then sleeps. By default it
# spins for milliseconds, which takes time from other processes on the same cores: two engines become several
# times slower; see docs/explanation/speculation.md. "active", or it would not spin at all as soon as a second
# thread of the process has computed: each has a team of its own, and together they are more than the cores.
# Values from the environment are kept.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OMP_WAIT_POLICY", "active")

# Must be set before ONNX Runtime or huggingface_hub loads, here and in child processes: both send usage data.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # by plain HTTP a download that broke off goes on
os.environ.setdefault("DO_NOT_TRACK", "1")

os.environ.update(variables())  # which llama.cpp runs here

from engine.base.config import EngineConfig
from engine.base.errors import DecodeFailed, EngineClosed, EngineError, ModelLoadError, RequestRefused
from engine.base.request import (
    Acceptance,
    Completion,
    Decoding,
    Drafted,
    DraftSpan,
    FinishReason,
    OnText,
    Progress,
    Request,
    SamplingParams,
    TextDelta,
    Timing,
    TokenLogprob,
)
from engine.core.engine import ModelInfo
from engine.medusa.layouts import HeadsLoadError
from engine.sampling.grammar import response_grammar
from engine.sampling.tool_grammar import answer_grammar
from engine.service import EngineService, load
from engine.serving.metrics import EngineMetrics

__all__ = [
    "Acceptance",
    "Completion",
    "DecodeFailed",
    "Decoding",
    "DraftSpan",
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
    "Progress",
    "Request",
    "RequestRefused",
    "SamplingParams",
    "TextDelta",
    "Timing",
    "TokenLogprob",
    "answer_grammar",
    "load",
    "response_grammar",
]
