"""Divergence, agreement and perplexity, held to sums written out in float64."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from compiling.base.errors import CompileError, RoomError, SourceError
from compiling.measure import quality
from compiling.measure.child import ask
from compiling.measure.quality import (
    MOST_TOKENS,
    WINDOW,
    Quality,
    compare,
    windows,
    write_reference,
)
from compiling.measure.texts import PASSAGES, PASSAGES_FILE, read_text
from engine.llama.context import Context, Rows
from engine.llama.model import Model, Tokens
from engine.weights.quantise import requantise
from tests.engine.helpers.tiny import CONTEXT, write_tiny_gguf

TEXT = "abc jade bad cafe, 12 34. " * 40  # two windows of the tiny model
SHORT = "the quick brown fox"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def coarse(tiny: str) -> str:
    target = str(Path(tiny).with_name("coarse.gguf"))
    requantise(tiny, target, "q4_0", threads=1)
    return target


def silent(_share: float) -> None:
    pass


def test_a_divergence_by_hand() -> None:
    """On a vocabulary of three; logits may have any offset."""
    p, q = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    logits = np.log(np.array([p, q, p], dtype=np.float32)) + np.array([[7], [-3], [0]], dtype=np.float32)
    exact, other = quality.log_probabilities(logits[:2]), quality.log_probabilities(logits[1:])
    by_hand = [
        sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)),
        sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)),
    ]
    np.testing.assert_allclose(quality.divergences(exact, other), by_hand, atol=1e-6)
    assert quality.same_likeliest(exact, other).tolist() == [False, False]
    assert quality.divergences(exact, exact).tolist() == [0.0, 0.0]


def by_numpy(path: str, text: str) -> np.ndarray:
    """[windows, tokens, vocab] log-probabilities, each window in a single call."""
    model = Model(path)
    found = []
    for tokens in windows(model, text):
        context = Context(model, cells=len(tokens), seq_ids=1, max_rows=len(tokens), threads=1)
        positions = np.arange(len(tokens), dtype=np.int32)
        rows = Rows(tokens, positions, np.zeros_like(positions), np.ones(len(tokens), np.int8))
        logits = context.decode(rows).logits.astype(np.float64)
        found.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    return np.array(found, dtype=object)


def test_what_it_says_of_two_models(tiny: str, coarse: str, tmp_path: Path) -> None:
    own = write_reference(tiny, TEXT, tmp_path / "reference", 1, silent)
    other = compare(coarse, TEXT, tmp_path / "reference", 1, silent)
    exact, found = by_numpy(tiny, TEXT), by_numpy(coarse, TEXT)
    parts = windows(Model(tiny), TEXT)
    assert len(parts) == 3
    p, q = np.concatenate(exact), np.concatenate(found)
    divergences = (np.exp(p) * (p - q)).sum(axis=1)
    assert other.tokens == own.tokens == len(p)
    assert other.kl == pytest.approx(divergences.mean(), rel=0.01)
    assert other.kl_error == pytest.approx(divergences.std(ddof=1) / math.sqrt(len(p)), rel=0.01)
    assert other.top1 == pytest.approx((p.argmax(axis=1) == q.argmax(axis=1)).mean(), abs=0.005)
    for measured, outputs in ((own, exact), (other, found)):
        losses = [
            -rows[i, tokens[i + 1]]
            for rows, tokens in zip(outputs, parts, strict=True)
            for i in range(len(tokens) - 1)
        ]
        assert measured.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=0.01)
    assert other.kl > 0.01, "the two are to be told apart"


def test_a_model_is_no_distance_from_itself(tiny: str, tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    own = write_reference(tiny, SHORT, reference, 1, silent)
    assert compare(tiny, SHORT, reference, 1, silent) == own
    assert (own.kl, own.kl_error, own.top1) == (0.0, 0.0, 1.0)
    assert reference.stat().st_size == own.tokens * Model(tiny).vocab_size * quality.LOGIT_BYTES


def test_windows_begin_as_the_model_wants_and_end_somewhere(tiny: str) -> None:
    model = Model(tiny)
    parts = windows(model, "x" * (MOST_TOKENS + 100))
    assert {int(part[0]) for part in parts} == {1}, "the token that begins a text"
    assert max(map(len, parts)) == WINDOW < CONTEXT
    assert sum(map(len, parts)) - len(parts) == MOST_TOKENS


def test_of_a_book_only_the_beginning_is_cut_into_tokens(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = Model(tiny), list[int]()
    tokenize = model.tokenize

    def noted(text: str, **options: bool) -> Tokens:
        lengths.append(len(text))
        return tokenize(text, **options)

    monkeypatch.setattr(model, "tokenize", noted)
    monkeypatch.setattr("compiling.measure.quality.MOST_LETTERS", letters := 2 * MOST_TOKENS)
    parts = windows(model, "Ä hare. " * letters)
    assert lengths == [0, letters]
    assert sum(map(len, parts)) - len(parts) == MOST_TOKENS


def test_our_own_text_is_varied_and_fits(tiny: str) -> None:
    assert read_text(PASSAGES_FILE) == PASSAGES
    assert PASSAGES.count("\n---\n") >= 10
    assert len(PASSAGES.split()) > 1500
    assert len(Model(tiny).tokenize(PASSAGES, add_bos=False, special=False)) > MOST_TOKENS, "byte by byte"


def test_in_a_process_of_its_own(tiny: str, coarse: str, tmp_path: Path) -> None:
    text, reference, heard = tmp_path / "text", tmp_path / "reference", list[float]()
    text.write_text(SHORT)
    options = ["--reference", str(reference), "--text", str(text), "--threads", "1"]
    own = ask("compiling.measure.quality", [tiny, *options, "--write"], heard.append)
    assert Quality(**own) == compare(tiny, SHORT, reference, 1, silent)
    other = ask("compiling.measure.quality", [coarse, *options], heard.append)
    assert Quality(**other) == compare(coarse, SHORT, reference, 1, silent)
    assert heard[-1] == 1.0
    assert sorted(tmp_path.iterdir()) == [reference, text]


# What goes wrong


def test_a_reference_of_another_text(tiny: str, tmp_path: Path) -> None:
    write_reference(tiny, SHORT, tmp_path / "reference", 1, silent)
    with pytest.raises(CompileError, match=r"tiny\.gguf: has other tokens than the reference$"):
        compare(tiny, TEXT, tmp_path / "reference", 1, silent)
    with pytest.raises(CompileError, match="none: cannot be read: No such file"):
        compare(tiny, TEXT, tmp_path / "none", 1, silent)


def test_a_reference_that_cannot_be_written(tiny: str, tmp_path: Path) -> None:
    with pytest.raises(RoomError, match="cannot be written: No such file or directory"):
        write_reference(tiny, SHORT, tmp_path / "none" / "reference", 1, silent)


def test_a_model_that_computes_no_numbers(tiny: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(tiny).read_bytes())
    for tensor in GGUFReader(broken, "r+").tensors:
        if tensor.name == "output_norm.weight":
            tensor.data[:] = np.nan
    with pytest.raises(CompileError, match="its outputs are not finite numbers"):
        write_reference(str(broken), SHORT, tmp_path / "reference", 1, silent)
    assert list(tmp_path.iterdir()) == [broken]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file"), (b"\xff\xfe\x00", "not UTF-8"), (b" word\n", "holds no text")],
)
def test_a_text_that_is_none(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=message):
        read_text(path)
