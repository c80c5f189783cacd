"""A number format chosen for this machine: kept, served, and forgotten when its file is another."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from common.llama_build import cache_folder
from engine import EngineConfig, ModelLoadError
from engine.weights.format_selection import open_model
from engine.weights.quantise import requantise
from engine.weights.saved_format import SavedFormat, find_format, save_format
from tests.engine.helpers.drive import opened


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def choice(tiny_gguf: str, tmp_path: Path) -> SavedFormat:
    file = tmp_path / "tiny.q8_0.gguf"
    requantise(tiny_gguf, str(file), "q8_0", threads=1)
    return SavedFormat("q8_0", str(file), "bulk", 0.02, "the fastest in bulk")


def config(path: str) -> EngineConfig:
    return EngineConfig(model=path, weights="for_this_machine", slots=2, kv_cells=256)


def test_what_was_chosen_is_served(
    tiny_gguf: str, choice: SavedFormat, caplog: pytest.LogCaptureFixture
) -> None:
    save_format(tiny_gguf, choice)
    assert find_format(tiny_gguf) == choice
    with caplog.at_level(logging.INFO):
        engine = opened(config(tiny_gguf))
    assert "Q8_0, chosen for this machine" in engine.info.quantization
    assert engine.info.path == tiny_gguf, "it is the same model"
    assert "weights are computed as q8_0, chosen for this machine: the fastest in bulk" in caplog.text


@pytest.mark.slow
def test_the_file_as_it_is_may_be_the_choice(tiny_gguf: str, choice: SavedFormat) -> None:
    save_format(tiny_gguf, replace(choice, type="source (f32)", file=None))
    assert "F32" in open_model(config(tiny_gguf)).description
    assert "chosen" not in open_model(config(tiny_gguf)).description


def test_without_a_choice_the_command_that_makes_it_is_named(tiny_gguf: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        open_model(config(tiny_gguf))
    assert caught.value.message == (
        f"{tiny_gguf}: no number format was chosen for it on this machine; this command chooses: "
        f"medusaq compile {tiny_gguf} --for-this-machine"
    )


def test_a_choice_is_void_when_its_file_is_gone_or_another(tiny_gguf: str, choice: SavedFormat) -> None:
    save_format(tiny_gguf, choice)
    assert choice.file
    Path(choice.file).write_bytes(b"GGUF of another")
    assert find_format(tiny_gguf) is None
    Path(choice.file).unlink()
    assert find_format(tiny_gguf) is None
    with pytest.raises(ModelLoadError, match="cannot be read: No such file"):
        save_format(tiny_gguf, choice)


@pytest.mark.parametrize("content", ["{", "{}", '{"choice": {"type": "q8_0"}}', '{"choice": 3}'])
@pytest.mark.slow
def test_a_damaged_note_is_no_choice(tiny_gguf: str, choice: SavedFormat, content: str) -> None:
    save_format(tiny_gguf, choice)
    [note] = cache_folder().glob("choices-*.json")
    assert json.loads(note.read_text())["choice"]["type"] == "q8_0"
    note.write_text(content)
    assert find_format(tiny_gguf) is None


def test_a_cache_that_cannot_be_written(
    tiny_gguf: str, choice: SavedFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match="cannot be kept: the cache folder cannot be written"):
        save_format(tiny_gguf, choice)
