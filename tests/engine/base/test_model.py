"""The model file: what cannot be served says why in one line; tokens of real models."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from engine import EngineConfig, ModelLoadError
from engine.llama.model import Model, default_model_path
from tests.engine.helpers.drive import opened
from tests.engine.helpers.tiny import VOCAB, write_tiny_gguf

TEXTS = ["plain", "naïve café — “déjà vu”", "日本語 русский العربية", "👩‍👩‍👧 🇫🇷", "tab\tline\n\n  spaces  "]


@pytest.fixture(scope="module")
def default_model() -> Model:
    return Model(default_model_path())


@pytest.fixture
def tiny(tiny_gguf: str) -> Model:
    return Model(tiny_gguf)


def refusal(path: Path | str) -> str:
    """The message with which an engine refuses this file: one line that names it."""
    with pytest.raises(ModelLoadError) as refused:
        opened(EngineConfig(model=str(path)))
    message = refused.value.message
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    assert refused.value.code == "model_load_failed"
    return message.removeprefix(f"{path}: ")


# Files that cannot be served


def test_a_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.gguf") == "no such file"


def test_a_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "no such file"


def test_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    assert refusal(tmp_path / ("x" * 300)) in ("no such file", "cannot be read: File name too long")


@pytest.mark.parametrize("content", [b"", b"GG", b"%PDF-1.7 and more", b"\x00" * 4096])
def test_not_a_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert refusal(path) == "not a GGUF file"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose reading fails")
def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.symlink_to("/proc/self/mem")  # opens, and fails at the first byte
    assert refusal(path) == "cannot be read: Input/output error"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path, tiny_gguf: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(Path(tiny_gguf).read_bytes())
    path.chmod(0)
    assert refusal(path) == "cannot be read: Permission denied"


@pytest.mark.parametrize("keep", ["4 B", "64 B", "1 MB", "half", "all but 1 B"])
@pytest.mark.slow
def test_a_truncated_file(tmp_path: Path, keep: str) -> None:
    content = Path(default_model_path()).read_bytes()
    size = len(content)
    length = {"4 B": 4, "64 B": 64, "1 MB": 1 << 20, "half": size // 2, "all but 1 B": size - 1}[keep]
    path = tmp_path / "model.gguf"
    path.write_bytes(content[:length])
    message = refusal(path)
    assert message.startswith("llama.cpp cannot load it: ")
    assert "no reason given" not in message


def test_garbage_after_the_magic(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + np.random.default_rng(1).bytes(4096))
    assert refusal(path).startswith("llama.cpp cannot load it: ")


def test_a_refusal_says_nothing_of_earlier_ones(tmp_path: Path) -> None:
    files = {tmp_path / "empty.gguf": b"GGUF", tmp_path / "version.gguf": b"GGUF\x63" + bytes(64)}
    for path, content in files.items():
        path.write_bytes(content)
    first, second = (refusal(path) for path in files)
    assert first != second
    assert [refusal(path) for path in files] == [first, second]


# What a file says of itself


def test_the_tiny_model_describes_itself(tiny: Model, tiny_gguf: str) -> None:
    assert (tiny.name, tiny.path, tiny.vocab_size) == (Path(tiny_gguf).stem, tiny_gguf, VOCAB)
    assert (tiny.trained_context, tiny.can_share_prefixes) == (1024, True)
    assert "F32" in tiny.description
    assert (tiny.bos_text, tiny.eos_text) == ("<s>", "</s>")


def test_a_model_without_a_template(tmp_path: Path) -> None:
    assert Model(write_tiny_gguf(tmp_path / "bare.gguf", chat_template=None)).chat_template is None


def test_the_default_model(default_model: Model) -> None:
    assert default_model.eos_text == "<|im_end|>"
    end = default_model.tokenize("<|im_end|>", add_bos=False, special=True)
    assert len(end) == 1
    assert default_model.ends_generation(int(end[0]))
    assert not default_model.ends_generation(int(default_model.tokenize("a", add_bos=False, special=True)[0]))


# Tokens


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [False, True])
def test_tokens_and_back(default_model: Model, tiny: Model, text: str, special: bool) -> None:
    # The tiny vocabulary spells a space as U+2581 and has no token for it, so it gets the text without.
    for model, sent in ((default_model, text), (tiny, text.replace(" ", ""))):
        tokens = model.tokenize(sent, add_bos=False, special=special)
        assert tokens.dtype == np.int32
        assert b"".join(model.piece(int(token)) for token in tokens) == sent.encode()


def test_a_long_text_and_an_empty_one(tiny: Model) -> None:
    assert len(tiny.tokenize("é" * 20_000, add_bos=False, special=False)) == 40_000
    assert tiny.tokenize("", add_bos=False, special=False).tolist() == []
    assert tiny.tokenize("", add_bos=True, special=False).tolist() == [1]


def test_control_tokens_only_when_special(default_model: Model) -> None:
    whole = default_model.tokenize("<|im_start|>", add_bos=False, special=True)
    assert len(whole) == 1
    assert len(default_model.tokenize("<|im_start|>", add_bos=False, special=False)) > 1
    assert default_model.piece(int(whole[0])) == b""
    assert default_model.piece(int(whole[0]), special=True) == b"<|im_start|>"
