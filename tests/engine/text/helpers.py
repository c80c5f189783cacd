"""Prompts as a model reads them through a chat template."""

from __future__ import annotations

from collections.abc import Callable

from engine import Request
from engine.llama.model import Model
from engine.text.prompt_encoder import PromptEncoder

WithTemplate = Callable[[str | None], tuple[PromptEncoder, Model]]


def read(model: Model, encoder: PromptEncoder, request: Request) -> str:
    """The prompt as the model sees it, control tokens spelt out."""
    return b"".join(model.piece(int(t), special=True) for t in encoder.encode(request)).decode()
