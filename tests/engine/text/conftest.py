from __future__ import annotations

from pathlib import Path

import pytest

from engine.llama.model import Model
from engine.text.prompt_encoder import PromptEncoder
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.engine.text.helpers import WithTemplate


@pytest.fixture
def with_template(tmp_path: Path) -> WithTemplate:
    """A tiny model whose file carries this template."""

    def make(template: str | None) -> tuple[PromptEncoder, Model]:
        path = write_tiny_gguf(tmp_path / "tiny.gguf", chat_template=template)
        model = Model(path)
        return PromptEncoder(model), model

    return make
