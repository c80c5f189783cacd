"""The model file: what cannot be served says why in one line; tokens, rows and cells on real models."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from engine import EngineConfig, ModelLoadError
from engine.engine import Engine
from engine.model import DecodeError, Logits, Model, Rows, default_model_path
from tests.engine.tiny import VOCAB, write_tiny_gguf

TEXTS = ["plain", "naïve café — “déjà vu”", "日本語 русский العربية", "👩‍👩‍👧 🇫🇷", "tab\tline\n\n  spaces  "]
SEQ_IDS = 4


def open_model(path: str, companion_row: bool = False) -> Model:
    return Model(
        path, cells=256, seq_ids=SEQ_IDS, max_rows=32, threads=1, kv_type="f32", companion_row=companion_row
    )


@pytest.fixture(scope="module")
def default_model() -> Model:
    return Model(default_model_path(), cells=256, seq_ids=SEQ_IDS, max_rows=32)


@pytest.fixture
def tiny(tiny_gguf: str) -> Model:
    return open_model(tiny_gguf)


def refusal(path: Path | str) -> str:
    """The message with which an engine refuses this file: one line that names it."""
    with pytest.raises(ModelLoadError) as refused:
        Engine(EngineConfig(model=str(path)))
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
    assert open_model(write_tiny_gguf(tmp_path / "bare.gguf", chat_template=None)).chat_template is None


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


# Rows and cells


def decode(model: Model, tokens: list[int], outputs: list[int], seq_id: int = 0, start: int = 0) -> Logits:
    """Logits of the rows named in outputs, for tokens at the positions from start on."""
    n = len(tokens)
    wanted = np.zeros(n, dtype=np.int8)
    wanted[outputs] = 1
    rows = Rows(
        np.array(tokens, dtype=np.int32),
        np.arange(start, start + n, dtype=np.int32),
        np.full(n, seq_id, dtype=np.int32),
        wanted,
    )
    return model.decode(rows).copy()


@pytest.mark.parametrize("companion_row", [False, True])
@pytest.mark.parametrize("output", [0, 1, 3, 4])
def test_a_lone_output_is_the_row_asked_for(tiny_gguf: str, companion_row: bool, output: int) -> None:
    tokens = [5, 70, 40, 280, 11]
    everything = decode(open_model(tiny_gguf), tokens, [0, 1, 2, 3, 4])
    lone = decode(open_model(tiny_gguf, companion_row), tokens, [output])
    assert lone.shape == (1, VOCAB)
    np.testing.assert_allclose(lone[0], everything[output], atol=1e-4)


@pytest.mark.parametrize("outputs", [[], [0]])
def test_a_lone_row_leaves_no_companion_behind(tiny_gguf: str, outputs: list[int]) -> None:
    model = open_model(tiny_gguf, companion_row=True)
    plain = decode(open_model(tiny_gguf), [5], outputs)
    lone = decode(model, [5], outputs)
    assert lone.shape == (len(outputs), VOCAB)
    np.testing.assert_allclose(lone, plain, atol=1e-4)
    assert model.positions(0) == (0, 0)
    assert [model.positions(i) for i in range(1, SEQ_IDS + 2)] == [(-1, -1)] * (SEQ_IDS + 1)


def test_a_lone_row_at_the_last_cell_has_room_for_its_companion(tiny_gguf: str) -> None:
    model = open_model(tiny_gguf, companion_row=True)
    cells = 256  # what the caller asked for and may use
    for start in range(0, cells - 16, 16):
        decode(model, [5] * 16, [], start=start)
    for start in range(cells - 16, cells):
        assert decode(model, [5], [0], start=start).shape == (1, VOCAB)
    assert model.positions(0) == (0, cells - 1)


def test_sharing_and_truncating(tiny: Model) -> None:
    tokens = [5, 70, 40, 280, 11]
    decode(tiny, tokens, [])
    tiny.share(0, 1, 3)
    assert (tiny.positions(0), tiny.positions(1)) == ((0, 4), (0, 2))
    tiny.truncate(0, 0)
    assert (tiny.positions(0), tiny.positions(1)) == ((-1, -1), (0, 2))
    after = decode(tiny, tokens[3:], [1], seq_id=1, start=3)
    alone = decode(tiny, tokens, [4], seq_id=2)
    np.testing.assert_allclose(after, alone, atol=1e-4)


def test_burying_hides_cells_but_keeps_them_occupied(tiny: Model) -> None:
    decode(tiny, [5, 70, 40, 280, 11], [])
    tiny.bury(0, 2)
    assert tiny.positions(0) == (0, 1)
    assert tiny.positions(SEQ_IDS + 1) == (2, 4), "held by no sequence that can be given to a request"
    tiny.unbury()
    assert tiny.positions(SEQ_IDS + 1) == (-1, -1)
    assert tiny.positions(0) == (0, 1)


def test_a_full_cache_is_a_decode_error_and_harms_nothing(tiny: Model) -> None:
    for start in range(0, tiny.cells, 32):
        decode(tiny, [5] * 32, [], start=start)
    with pytest.raises(DecodeError, match="status 1") as failed:
        decode(tiny, [5], [0], seq_id=1)
    assert failed.value.status == 1
    tiny.truncate(0, 10)
    assert decode(tiny, [5], [0], seq_id=1).shape == (1, VOCAB)
