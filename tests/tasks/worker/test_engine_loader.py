"""What the engine is given: the files and the chat template of a name, unless a setting says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import EngineConfig
from engine.host.file_digest import digest_file
from engine.tools.model_registry import NamedModel, Register
from tasks.base.settings import load_settings
from tasks.worker.engine_loader import load_engine
from tests.support import scripted


@pytest.mark.parametrize("heads", [None, "my.heads"])
def test_a_name_brings_its_heads_and_its_chat_template(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, heads: str | None
) -> None:
    model, own = tmp_path / "named.gguf", tmp_path / "named.heads"
    for path in (model, own):
        path.write_text("x")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    named = NamedModel("small", digest_file(model, "x"), digest_file(own, "x"), "vicuna")
    Register(tmp_path / "medusaq").add(named)
    configs: list[EngineConfig] = []

    def load(config: EngineConfig) -> scripted.ScriptedEngine:
        configs.append(config)
        return scripted.load(config)

    monkeypatch.setattr(scripted, "load_for_test", load, raising=False)
    settings = load_settings(
        model="small", heads=heads, slots=3, engine_factory="tests.support.scripted:load_for_test"
    )
    service, name = load_engine(settings)
    service.close()
    assert name == "small"
    [config] = configs
    assert (config.model, config.heads) == (str(model), heads or str(own))
    assert config.chat_template == "vicuna"
    assert config.slots == 3
