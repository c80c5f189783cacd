"""The importance matrix, held to a forward pass in float64, and to the hidden states of a real context."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from numpy.typing import NDArray

from engine.base.errors import ImportanceError, ModelLoadError
from engine.llama import ggml_tensors
from engine.llama.context import Context, Rows
from engine.llama.model import Model, default_model_path
from engine.weights import importance_matrix
from engine.weights.importance_matrix import CHUNK, check_text, importance_of
from engine.weights.quantise import requantise
from tests.engine.helpers.tiny import HEADS, KV_HEADS, LAYERS, write_tiny_gguf, write_tiny_mamba

Matrix = NDArray[np.float64]
EXPERTS = 4
TEXT = "A hare met a tortoise and laughed at its short feet; the tortoise smiled, and asked for a race. " * 12
ROPE_BASE = 10_000.0


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def expert_gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "experts.gguf", experts=EXPERTS)


def chunks_of(path: str) -> list[list[int]]:
    model = Model(path)
    tokens = model.tokenize(TEXT, add_bos=True, special=False)
    chunks = [tokens[i : i + CHUNK].tolist() for i in range(0, len(tokens) - CHUNK + 1, CHUNK)]
    return [[1, *chunk[1:]] for chunk in chunks]  # token 1 begins everything that the tiny model reads


class Forward:
    """A llama in float64, which keeps what each matrix is multiplied with."""

    def __init__(self, path: str) -> None:
        self.weights = {t.name: np.asarray(t.data, dtype=np.float64) for t in GGUFReader(path).tensors}
        self.met: dict[str, list[Matrix]] = {}
        self.routed: dict[str, list[list[Matrix]]] = {}  # for each expert

    def times(self, name: str, x: Matrix) -> Matrix:
        self.met.setdefault(name, []).append(x)
        return x @ self.weights[name].T

    def run(self, tokens: list[int]) -> None:
        x = self.weights["token_embd.weight"][tokens]
        for k in range(LAYERS):
            x = x + self.attention(f"blk.{k}.", normed(x))
            x = x + self.feed_forward(f"blk.{k}.", normed(x))
        self.times("output.weight", normed(x))

    def attention(self, layer: str, x: Matrix) -> Matrix:
        q, k, v = (self.times(f"{layer}attn_{name}.weight", x) for name in "qkv")
        size, mixed = q.shape[1] // HEADS, []
        for head in range(HEADS):
            own = slice(head * size, (head + 1) * size)
            shared = slice(head * KV_HEADS // HEADS * size, (head * KV_HEADS // HEADS + 1) * size)
            scores = turned(q[:, own]) @ turned(k[:, shared]).T / np.sqrt(size)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            mixed.append(softmax(scores) @ v[:, shared])
        return self.times(f"{layer}attn_output.weight", np.concatenate(mixed, axis=1))

    def feed_forward(self, layer: str, x: Matrix) -> Matrix:
        if f"{layer}ffn_gate_inp.weight" in self.weights:
            return self.experts(layer, x)
        gate, up = (self.times(f"{layer}ffn_{name}.weight", x) for name in ("gate", "up"))
        return self.times(f"{layer}ffn_down.weight", gate / (1 + np.exp(-gate)) * up)

    def experts(self, layer: str, x: Matrix) -> Matrix:
        probabilities = softmax(self.times(f"{layer}ffn_gate_inp.weight", x))
        best = np.argsort(-probabilities, axis=1)[:, : EXPERTS // 2]
        shares = np.take_along_axis(probabilities, best, axis=1)
        shares /= shares.sum(axis=1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(EXPERTS):
            token, slot = (best == expert).nonzero()

            def times(name: str, given: Matrix, expert: int = expert) -> Matrix:
                whole = f"{layer}ffn_{name}_exps.weight"
                self.routed.setdefault(whole, [[] for _ in range(EXPERTS)])[expert].append(given)
                return np.asarray(given @ self.weights[whole][expert].T)

            gate, up = times("gate", x[token]), times("up", x[token])
            np.add.at(out, token, shares[token, slot, None] * times("down", gate / (1 + np.exp(-gate)) * up))
        return out

    def importance(self) -> dict[str, Matrix]:
        plain = {name: np.mean(np.concatenate(met) ** 2, axis=0) for name, met in self.met.items()}
        routed = {
            name: np.concatenate([np.mean(np.concatenate(met) ** 2, axis=0) for met in experts])
            for name, experts in self.routed.items()
        }
        return plain | routed


def normed(x: Matrix) -> Matrix:
    return x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5)


def softmax(x: Matrix) -> Matrix:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def turned(x: Matrix) -> Matrix:
    """Rotary embedding of neighbouring pairs."""
    size = x.shape[1]
    angle = np.arange(len(x))[:, None] * ROPE_BASE ** (-np.arange(0, size, 2) / size)
    even, odd = x[:, ::2], x[:, 1::2]
    out = np.empty_like(x)
    out[:, ::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[:, 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


@pytest.mark.parametrize(("model", "half", "most"), [("tiny_gguf", 0.001, 0.005), ("expert_gguf", 0.01, 0.3)])
@pytest.mark.slow
def test_it_is_the_mean_square_of_what_meets_each_column(
    request: pytest.FixtureRequest, text: Path, model: str, half: float, most: float
) -> None:
    """The cache is of 16 bits, which now and then sends a token to another expert of nearly equal score."""
    path: str = request.getfixturevalue(model)
    told: list[tuple[int, int]] = []
    found = importance_of(path, text, threads=1, progress=lambda *done: told.append(done))
    forward, chunks = Forward(path), chunks_of(path)
    for chunk in chunks:
        forward.run(chunk)
    expected = forward.importance()
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == np.float32
        off = np.abs(found[name] / values - 1)
        assert np.median(off) < half, name
        assert off.max() < most, name
    assert told == [(k, len(chunks)) for k in range(1, len(chunks) + 1)]
    assert len(chunks) > 1


def test_the_output_matrix_meets_the_hidden_states(tiny_gguf: str, text: Path) -> None:
    model = Model(tiny_gguf)
    context = Context(model, cells=CHUNK, seq_ids=1, max_rows=CHUNK, threads=1)
    squares = []
    for chunk in chunks_of(tiny_gguf):
        every = np.arange(CHUNK, dtype=np.int32)
        ids, outputs = np.zeros(CHUNK, np.int32), np.ones(CHUNK, np.int8)
        given = context.decode(Rows(np.array(chunk, np.int32), every, ids, outputs), hidden=True)
        assert given.hidden is not None
        squares.append(given.hidden.astype(np.float64) ** 2)
        context.truncate(0, 0)
    found = importance_of(tiny_gguf, text, threads=1)["output.weight"]
    np.testing.assert_allclose(found, np.concatenate(squares).mean(axis=0), rtol=1e-3)


def test_an_expert_that_no_token_is_sent_to_counts_all_columns_the_same(
    expert_gguf: str, tmp_path: Path, text: Path
) -> None:
    reader = GGUFReader(expert_gguf)
    raw = bytearray(Path(expert_gguf).read_bytes())
    [router] = [t for t in reader.tensors if t.name == "blk.0.ffn_gate_inp.weight"]
    # Equal scores send every token to the first two.
    raw[router.data_offset : router.data_offset + router.n_bytes] = bytes(int(router.n_bytes))
    path = tmp_path / "idle.gguf"
    path.write_bytes(raw)
    found = importance_of(str(path), text, threads=1)["blk.0.ffn_up_exps.weight"].reshape(EXPERTS, -1)
    idle = [bool((row == 1).all()) for row in found]
    assert sorted(idle) == [False, False, True, True]


def test_a_recurrent_model_has_one_too(tmp_path: Path, text: Path) -> None:
    found = importance_of(write_tiny_mamba(tmp_path / "mamba.gguf"), text, threads=1)
    assert {"blk.0.ssm_in.weight", "blk.1.ssm_out.weight", "output.weight"} <= found.keys()
    assert all(np.isfinite(values).all() and values.max() > 0 for values in found.values())


@pytest.mark.slow
def test_what_it_finds_can_be_quantised_with(expert_gguf: str, tmp_path: Path, text: Path) -> None:
    found = importance_of(expert_gguf, text, threads=1)
    sizes = []
    for name, matrix in (("plain.gguf", None), ("matrix.gguf", found)):
        requantise(expert_gguf, str(tmp_path / name), "iq4_nl", threads=1, importance=matrix)
        sizes.append((tmp_path / name).read_bytes())
    assert sizes[0] != sizes[1]
    assert Model(str(tmp_path / "matrix.gguf")).vocab_size


# What goes wrong


def test_a_text_that_does_not_serve_is_named(tiny_gguf: str, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    with pytest.raises(ImportanceError, match=r"text\.txt: cannot be read: No such file or directory$"):
        importance_of(tiny_gguf, path)
    path.write_text("")
    with pytest.raises(ImportanceError, match=r"text\.txt: too short, 1 tokens: 512 are needed"):
        importance_of(tiny_gguf, path)
    path.write_text("A hare met a tortoise.")
    with pytest.raises(ImportanceError, match=r"text\.txt: too short, \d+ tokens: 512 are needed"):
        importance_of(tiny_gguf, path)
    path.write_bytes(b"A hare met a tortoise, caf\xe9")
    with pytest.raises(ImportanceError, match=r"text\.txt: not UTF-8 at byte 26: give a plain text$"):
        importance_of(tiny_gguf, path)


def test_a_text_is_checked_by_the_vocabulary_alone(tiny_gguf: str, tmp_path: Path, text: Path) -> None:
    check_text(tiny_gguf, text)
    short = tmp_path / "short.txt"
    for content in ("", "A hare met a tortoise."):
        short.write_text(content)
        with pytest.raises(ImportanceError) as late:
            importance_of(tiny_gguf, short)
        with pytest.raises(ImportanceError, match=r"short\.txt: too short, \d+ tokens: 512 are") as early:
            check_text(tiny_gguf, short)
        assert early.value.message == late.value.message
    with pytest.raises(ImportanceError, match=r"none\.txt: cannot be read"):
        check_text(tiny_gguf, tmp_path / "none.txt")


def test_a_model_that_does_not_serve_is_named(tmp_path: Path, text: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"none\.gguf: no such file"):
        importance_of(str(tmp_path / "none.gguf"), text)


def test_a_model_that_computes_nonsense_is_named(tiny_gguf: str, tmp_path: Path, text: Path) -> None:
    [matrix] = [t for t in GGUFReader(tiny_gguf).tensors if t.name == "blk.0.ffn_up.weight"]
    raw = bytearray(Path(tiny_gguf).read_bytes())
    raw[matrix.data_offset : matrix.data_offset + 4] = np.float32(np.nan).tobytes()
    path = tmp_path / "nonsense.gguf"
    path.write_bytes(raw)
    with pytest.raises(ImportanceError, match=r"meets numbers that are not finite: the model computes"):
        importance_of(str(path), text, threads=1)


def test_another_layout_of_tensors_is_refused_before_it_is_trusted(
    tiny_gguf: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = list(ggml_tensors.GgmlTensor._fields_)

    class Grown(ctypes.Structure):
        _fields_ = (*fields, ("more", ctypes.c_void_p))

    class Swapped(ctypes.Structure):
        _fields_ = (*fields[:2], fields[3], fields[2], *fields[4:])

    for layout in (Grown, Swapped):
        monkeypatch.setattr(ggml_tensors, "GgmlTensor", layout)
        with pytest.raises(ImportanceError, match="lays out its tensors in a way that is not known here: "):
            importance_of(tiny_gguf, text)


def test_shapes_other_than_the_file_s_are_refused(
    tiny_gguf: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importance_matrix, "tensor_shapes", lambda _path: {"blk.1.ffn_up.weight": (64, 99)})
    with pytest.raises(
        ImportanceError,
        match=r"^blk\.1\.ffn_up\.weight is \(64, 128, 1, 1\) in llama\.cpp, and \(64, 99\) in",
    ):
        importance_of(tiny_gguf, text, threads=1)


@pytest.mark.slow
def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """While llama.cpp computes, Python's own code runs in the callback alone."""
    long = tmp_path / "long.txt"
    long.write_text(TEXT * 100)
    code = """
import os, signal, sys
from pathlib import Path
from engine.weights import importance_matrix
take = importance_matrix._Collector.take
def interrupted(*given):
    os.kill(os.getpid(), signal.SIGINT)
    take(*given)
importance_matrix._Collector.take = interrupted
importance_matrix.importance_of(sys.argv[1], Path(sys.argv[2]), progress=lambda *_: print("went on"))
"""
    command = [sys.executable, "-c", code, default_model_path(), str(long)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60, check=False
    )
    assert "KeyboardInterrupt" in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stdout == ""
