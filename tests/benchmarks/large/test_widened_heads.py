"""Widened heads guess what the small ones do, from the states of the widened model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from engine.llama.model import default_model_path, read_shape
from engine.medusa.calibration import RANKS
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.loader import load_heads
from engine.medusa.model_rows import FINGERPRINT, ModelRows, fingerprint
from engine.speculative.setup import shipped_heads
from tests.benchmarks.drafting.heads import write_random_heads
from tests.benchmarks.large.shapes import Shape
from tests.benchmarks.large.widened import main, widen
from tests.benchmarks.large.widened_heads import widen_heads
from tests.engine.helpers.tiny import VOCAB, WIDTH, write_tiny_gguf
from training.heads.recipe import Kind

WIDER = Shape(160, 10, 192, 3)
DRAFT_VOCABULARY, HEADS = 200, 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny one, and the same widened."""
    folder = tmp_path_factory.mktemp("models")
    tiny = Path(write_tiny_gguf(folder / "tiny.gguf"))
    widen(tiny, folder / "wide.gguf", WIDER, "f32")
    return tiny, folder / "wide.gguf"


def guesses(
    heads: Path, model: Path, states: NDArray[np.float32], path: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    loaded = load_heads(str(heads), width=states.shape[1], vocab_size=VOCAB, model_rows=ModelRows(str(model)))
    return loaded.propose(states, HEADS, RANKS, path=path)


@pytest.mark.parametrize("kind", Kind)
def test_they_guess_the_same_tokens(models: tuple[Path, Path], tmp_path: Path, kind: Kind) -> None:
    tiny, wide = models
    write_random_heads(tmp_path / "small.safetensors", WIDTH, DRAFT_VOCABULARY, HEADS, kind)
    widen_heads(tmp_path / "small.safetensors", tmp_path / "wide.safetensors", wide)
    rng = np.random.default_rng(0)
    states = rng.standard_normal((20, WIDTH)).astype(np.float32)
    path = rng.integers(VOCAB, size=(20, HEADS), dtype=np.int32)
    tokens, chances = guesses(tmp_path / "small.safetensors", tiny, states, path)
    wider = np.pad(states, ((0, 0), (0, WIDER.width - WIDTH)))
    found, likely = guesses(tmp_path / "wide.safetensors", wide, wider, path)
    np.testing.assert_array_equal(found, tokens)
    np.testing.assert_allclose(likely, chances, atol=1e-5)
    others = guesses(tmp_path / "wide.safetensors", wide, wider, (path + 1) % VOCAB)[0]
    assert np.array_equal(others, found) is (kind is Kind.MEDUSA), "Hydra heads see the path"


def test_each_block_of_a_layer_that_reads_several_is_padded_by_itself(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((WIDTH, 3 * WIDTH)).astype(np.float32)
    bias = rng.standard_normal(WIDTH).astype(np.float32)
    save_file({"1.0.linear.weight": weight, "1.0.linear.bias": bias}, tmp_path / "small.safetensors")
    widen_heads(tmp_path / "small.safetensors", tmp_path / "wide.safetensors", models[1])
    wide = load_file(tmp_path / "wide.safetensors")
    inputs = rng.standard_normal((3, WIDTH)).astype(np.float32)
    padded = np.pad(inputs, ((0, 0), (0, WIDER.width - WIDTH)))
    given = wide["1.0.linear.weight"] @ padded.ravel() + wide["1.0.linear.bias"]
    np.testing.assert_allclose(given[:WIDTH], weight @ inputs.ravel() + bias, atol=1e-4)
    assert not given[WIDTH:].any()


def test_the_packaged_ones_keep_what_they_say_of_themselves(
    tmp_path: Path,
) -> None:
    wide = tmp_path / "wide.gguf"
    shipped = shipped_heads(default_model_path())
    assert shipped
    widen(Path(write_tiny_gguf(tmp_path / "tiny.gguf")), wide, Shape(640, 4, 128, 2), "f16")
    widen_heads(shipped, tmp_path / "heads.safetensors", wide)
    before, after = (_metadata(path) for path in (shipped, tmp_path / "heads.safetensors"))
    assert after["calibration"] == before["calibration"]
    assert (after["width"], after[FINGERPRINT]) == ("640", fingerprint(str(wide)))


def test_other_layouts_are_refused(models: tuple[Path, Path], tmp_path: Path) -> None:
    save_file({"lm_heads.0.weight": np.zeros((4, WIDTH), dtype=np.float32)}, tmp_path / "small.safetensors")
    with pytest.raises(HeadsLoadError, match="is of no layer"):
        widen_heads(tmp_path / "small.safetensors", tmp_path / "wide.safetensors", models[1])
    save_file({"0.0.linear.weight": np.zeros((WIDTH, 70), dtype=np.float32)}, tmp_path / "small.safetensors")
    with pytest.raises(HeadsLoadError, match="does not read whole states"):
        widen_heads(tmp_path / "small.safetensors", tmp_path / "wide.safetensors", models[1])


def _metadata(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return dict(file.metadata())


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr("sys.argv", ["widened", *map(str, words)])
    main()


def test_the_command_writes_model_and_heads_and_says_what_they_are_not(
    models: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, heads, wide_heads = (
        tmp_path / name for name in ("wide.gguf", "heads.safetensors", "wide.safetensors")
    )
    write_random_heads(heads, WIDTH, VOCAB, HEADS, Kind.HYDRA)
    source = ("--out", out, "--model", models[0], "--format", "f16", "--shape", WIDER)
    command(monkeypatch, *source, "--layers", 4, "--heads-of", heads, "--heads-out", wide_heads)
    said = capsys.readouterr().out
    assert f"{out}: 160x10x192x4, 0.00B parameters, f16, " in said
    assert "it tells nothing of quality" in said
    assert read_shape(str(out)).layers == 4
    found = load_heads(str(wide_heads), width=160, vocab_size=VOCAB, model_rows=ModelRows(str(out)))
    assert found.heads == HEADS


def test_the_command_refuses_in_one_line(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ("--out", tmp_path / "wide.gguf", "--model", models[0])
    with pytest.raises(SystemExit, match=r"^error: width 16 is less than the 64 of tiny$"):
        command(monkeypatch, *source, "--shape", WIDER, "--width", 16)
    with pytest.raises(SystemExit, match=r"^error: no heads for .* are packaged: give --heads-of FILE$"):
        command(monkeypatch, *source, "--shape", WIDER, "--heads-out", tmp_path / "heads.safetensors")
