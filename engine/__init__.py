"""A continuous-batching engine for GGUF models. Nothing here knows of HTTP, Redis or Celery."""

from engine.config import EngineConfig
from engine.errors import DecodeFailed, EngineClosed, EngineError, ModelLoadError, RequestRefused
from engine.request import Completion, FinishReason, Request, SamplingParams, Timing, TokenLogprob
from engine.service import EngineService, load

__all__ = [
    "Completion",
    "DecodeFailed",
    "EngineClosed",
    "EngineConfig",
    "EngineError",
    "EngineService",
    "FinishReason",
    "ModelLoadError",
    "Request",
    "RequestRefused",
    "SamplingParams",
    "Timing",
    "TokenLogprob",
    "load",
]
