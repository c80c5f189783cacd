"""A continuous-batching engine for GGUF models. Nothing here knows of HTTP, Redis or Celery."""

import os

# Before llama.cpp loads its OpenMP: a thread that waits for the other spins this often, then sleeps. By
# default it spins on, and when another process takes a core, it burns the time that process would need:
# two engines on two cores took twice as long. An undisturbed engine loses nothing.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from engine.config import EngineConfig
from engine.errors import DecodeFailed, EngineClosed, EngineError, ModelLoadError, RequestRefused
from engine.grammar import response_grammar
from engine.head_layouts import HeadsLoadError
from engine.request import (
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
    "EngineService",
    "FinishReason",
    "HeadsLoadError",
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
