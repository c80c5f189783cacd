"""Heads by ONNX Runtime: every layout against full precision; and files that must be refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from engine.llama.model import default_model_path, read_shape
from engine.medusa.calibration import Calibration
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.lm_head import FINGERPRINT, fingerprint, lm_head_rows
from engine.medusa.loader import load_heads
from engine.medusa.medusa_source import HeadSource
from engine.medusa.onnx.export import export
from engine.medusa.onnx.format import ABOUT
from engine.medusa.onnx.graph import BLOCK, build, least_bytes, quantised
from engine.medusa.onnx.heads import OnnxHeads
from engine.medusa.weights import HeadWeights
from engine.speculative.setup import shipped_heads
from tests.benchmarks.guesses import Nearness, hidden_states
from tests.engine.helpers.float_heads import FloatHeads
from tests.engine.medusa.test_reader import (
    HEADS,
    HIDDEN,
    TOKEN_MAP,
    TOP,
    VOCAB,
    WIDTH,
    State,
    Vllm,
    lm_head,
    load,
    medusa,
    write,
)

pytestmark = pytest.mark.slow

TOLERANCE = {8: 0.03, 4: 0.15}  # of the logits' length, on random weights
ROOT = Path(__file__).parents[4]

Floats = NDArray[np.float32]


def onnx_heads(path: Path, bits: int = 8, **options: object) -> OnnxHeads:
    defaults = {"width": WIDTH, "vocab_size": VOCAB, "lm_head": lm_head, "bits": bits}
    return load_heads(str(path), **{**defaults, **options})  # type: ignore[arg-type]


def written(source: Path, path: Path, bits: int = 8) -> Path:
    """An ONNX file of these heads."""
    path.write_bytes(build(HeadWeights(str(source), WIDTH, VOCAB, lm_head), bits))
    return path


def logits(heads: FloatHeads | OnnxHeads, rows: int) -> Floats:
    """Of every token, less their mean [states, heads, vocabulary]."""
    tokens, probabilities = heads.propose(HIDDEN, HEADS, rows)
    logs = np.log(probabilities)
    whole = np.zeros((len(HIDDEN), HEADS, VOCAB), dtype=np.float32)
    np.put_along_axis(whole, tokens.astype(np.int64), logs - logs.mean(axis=-1, keepdims=True), axis=2)
    return whole


def distance(exact: Floats, near: Floats) -> float:
    """The largest over states and heads, in lengths of the exact one."""
    lengths = np.linalg.norm(exact, axis=-1)
    return float((np.linalg.norm(exact - near, axis=-1) / lengths).max())


def prefixed(state: State) -> State:
    return {"model.norm.weight": torch.ones(3), **{f"medusa_head.{key}": t for key, t in state.items()}}


def mapped(state: State) -> State:
    return {**state, "token_map": torch.from_numpy(TOKEN_MAP)}


LAYOUTS: dict[str, Callable[[], tuple[State, dict[str, object]]]] = {
    "v1": lambda: (medusa(1, True).state_dict(), {}),
    "v1, two layers": lambda: (medusa(2, True).state_dict(), {}),
    "v1 in BF16": lambda: (medusa(1, True).bfloat16().state_dict(), {}),
    "v2": lambda: (medusa(2, False).state_dict(), {}),
    "ours": lambda: (mapped(medusa(1, False).state_dict()), {}),
    "full model": lambda: (prefixed(medusa(1, True).state_dict()), {}),
    "vLLM": lambda: (Vllm(1, VOCAB, bias=True).state_dict(), {"vocab_size": VOCAB, "logit_scale": 0.25}),
    "vLLM, its map's rows": lambda: (mapped(Vllm(1, len(TOKEN_MAP)).state_dict()), {}),
    "vLLM, all rows and a map": lambda: (mapped(Vllm(1, VOCAB).state_dict()), {}),
    "vLLM, one lm_head": lambda: (Vllm(1, VOCAB, lm_heads=1).state_dict(), {}),
}


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", ["medusa_lm_head.safetensors", "medusa_lm_head.pt"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_as_in_full_precision(tmp_path: Path, layout: str, name: str, bits: int) -> None:
    state, config = LAYOUTS[layout]()
    folder = tmp_path / "heads"
    folder.mkdir()
    write(folder / name, state)
    (folder / "config.json").write_text(json.dumps(config))
    full = load(folder)
    ours = onnx_heads(written(folder, tmp_path / "heads.onnx", bits))
    assert (ours.heads, ours.layers, ours.width, ours.bits) == (HEADS, full.layers, WIDTH, bits)
    rows = VOCAB if full.draft_vocabulary is None else len(full.draft_vocabulary)
    assert ours.rows == rows
    exact, near = logits(full, rows), logits(ours, rows)
    assert distance(exact, near) < TOLERANCE[bits]
    assert distance(exact, near[::-1]) > 0.5, "it tells states apart"
    assert distance(exact, near[:, ::-1]) > 0.5, "and heads"
    np.testing.assert_allclose(ours.propose(HIDDEN, HEADS, rows)[1].sum(axis=-1), 1, rtol=1e-4)
    assert np.array_equal(near, logits(onnx_heads(folder, bits), rows)), "as when built in memory"


def test_candidates_come_best_first(tmp_path: Path) -> None:
    heads = onnx_heads(write(tmp_path / "heads.pt", medusa(1, False).state_dict()))
    tokens, probabilities = heads.propose(HIDDEN, HEADS, TOP)
    assert tokens.shape == probabilities.shape == (len(HIDDEN), HEADS, TOP)
    assert (tokens.dtype, probabilities.dtype) == (np.int32, np.float32)
    assert (np.diff(probabilities, axis=-1) <= 0).all()
    many, _ = heads.propose(HIDDEN, HEADS, VOCAB)
    assert np.array_equal(many[..., :TOP], tokens)


@pytest.mark.parametrize("own_lm_head", [True, False])
def test_any_run_of_heads_is_that_part_of_all(tmp_path: Path, own_lm_head: bool) -> None:
    heads = onnx_heads(write(tmp_path / "heads.pt", medusa(2, own_lm_head).state_dict()))
    tokens, probabilities = heads.propose(HIDDEN, HEADS, TOP)
    for first in range(HEADS):
        for stop in range(first + 1, HEADS + 1):
            some, chances = heads.propose(HIDDEN[2:4], stop, TOP, first=first)
            assert np.array_equal(some, tokens[2:4, first:stop])
            np.testing.assert_allclose(chances, probabilities[2:4, first:stop], rtol=1e-5)


def test_more_threads_change_no_guess(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.pt", medusa(1, True).state_dict())
    one, two = (onnx_heads(path, threads=threads).propose(HIDDEN, HEADS, TOP) for threads in (1, 2))
    assert np.array_equal(one[0], two[0])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("width", [24, 32, 65])
def test_blocks_are_the_weights_but_for_rounding(width: int, bits: int) -> None:
    weight = np.random.default_rng(1).standard_normal((3, width)).astype(np.float32)
    weight[1] = 0
    integers, scales = quantised(weight, bits)
    if bits == 4:
        integers = np.stack([integers & 15, integers >> 4], axis=-1).reshape(*scales.shape, BLOCK)
    back = (integers.astype(np.float32) - 2 ** (bits - 1)) * scales[..., None]
    error = np.abs(back.reshape(3, -1)[:, :width] - weight)
    assert (error <= scales.repeat(BLOCK, axis=1)[:, :width] * 0.501).all()


def test_what_was_said_of_heads_goes_along(tmp_path: Path) -> None:
    said = {"calibration": Calibration(HEADS).to_json(), FINGERPRINT: "00ff"}
    path = write(tmp_path / "heads.safetensors", mapped(medusa(1, False).state_dict()), said)
    heads = onnx_heads(written(path, tmp_path / "heads.onnx"))
    assert {key: heads.metadata[key] for key in said} == said
    HeadSource(heads)


@pytest.mark.parametrize("lm_heads", [1, 2])
@pytest.mark.parametrize("vocabulary", [90, 91, 6143])
@pytest.mark.parametrize("width", [24, 32, 48, 576])
def test_heads_of_any_shape_guess_like_those_in_full(
    tmp_path: Path, vocabulary: int, width: int, lm_heads: int
) -> None:
    """A kernel that reads past a row would give nonsense, or crash."""
    generator = torch.Generator().manual_seed(5)

    def some(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    state = {}
    for head in range(lm_heads):
        state[f"lm_heads.{head}.weight"] = some(vocabulary, width, scale=4 / width**0.5)
    for head, layer in np.ndindex(2, 2):
        state[f"blocks.{head}.layers.{layer}.weight"] = some(width, width, scale=0.05)
        state[f"blocks.{head}.layers.{layer}.bias"] = some(width, scale=1.0)
    path = write(tmp_path / "heads.safetensors", state)
    hidden = some(3, width, scale=1.0).numpy()
    full = FloatHeads.load(str(path), width=width, vocab_size=vocabulary, lm_head=lm_head)
    small = onnx_heads(path, width=width, vocab_size=vocabulary)
    (tokens, chances), (ours, own) = full.propose(hidden, 2, 3), small.propose(hidden, 2, 3)
    assert np.abs(chances - own).max() < 0.08
    sure = chances[:, :, 0] - chances[:, :, 1] > 0.17
    assert sure.any()
    assert np.array_equal(tokens[sure][:, 0], ours[sure][:, 0])


# The default model


def test_real_states_get_the_drafts_of_full_precision() -> None:
    """So that the calibration, counted on the same weights, fits."""
    near = Nearness(hidden_states(400))
    same, difference = near.of(load_heads)
    assert same > 0.9
    assert difference < 0.03
    four, _ = near.of(load_heads, bits=4)
    assert 0.6 < four < same


# Refusals


def refused(path: Path, reason: str, **options: object) -> None:
    with pytest.raises(HeadsLoadError, match=reason) as error:
        onnx_heads(path, **options)  # type: ignore[arg-type]
    assert error.value.message.startswith(f"{path}: ")
    assert "\n" not in error.value.message


@pytest.fixture
def good(tmp_path: Path) -> Path:
    source = write(tmp_path / "heads.pt", mapped(medusa(1, False).state_dict()))
    return written(source, tmp_path / "heads.onnx")


def test_another_hidden_size(good: Path) -> None:
    refused(good, "for models of hidden size 24, and this one has 576", width=576)


def test_another_vocabulary(good: Path) -> None:
    refused(good, "for a vocabulary of 90 tokens, and the model has 49152", vocab_size=49152)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"GGUF" * 50, b"PK\x03\x04" + b"\x00" * 100])
def test_rubbish(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "heads.onnx"
    path.write_bytes(content)
    refused(path, "cannot be read as ONNX|no Medusa heads in it")


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file(good: Path, share: float) -> None:
    content = good.read_bytes()
    good.write_bytes(content[: int(len(content) * share)])
    refused(good, "cannot be read as ONNX|no Medusa heads in it")


def test_no_file_and_a_folder_of_that_name(tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", "No such file")
    (tmp_path / "folder.onnx").mkdir()
    refused(tmp_path / "folder.onnx", "Is a directory")


def test_a_graph_that_is_something_else(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negative", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "other.onnx"
    onnx.save(model, path)
    refused(path, "no Medusa heads in it: medusaq export-heads writes files that have")
    sizes = {"heads": 2, "layers": 1, "width": WIDTH, "vocab_size": VOCAB, "rows": 9, "bits": 8}
    helper.set_model_props(model, {ABOUT: json.dumps(sizes)})
    onnx.save(model, path)
    refused(path, "its heads do not run")


@pytest.mark.parametrize("about", ["[]", "{}", '{"heads": "many"}', "{", "null"])
def test_sizes_that_say_nothing(good: Path, about: str) -> None:
    model = onnx.load(good)
    helper.set_model_props(model, {ABOUT: about})
    onnx.save(model, good)
    refused(good, "no Medusa heads in it")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("vocabulary", 90, "guess tokens that the model's 90 have not"),
        ("vocabulary", -1, "guess tokens"),
        ("lm_head_scales", np.nan, "not finite"),
    ],
)
def test_a_file_whose_numbers_are_damaged(good: Path, name: str, value: float, reason: str) -> None:
    model = onnx.load(good)
    [damaged] = [constant for constant in model.graph.initializer if constant.name.endswith(name)]
    numbers = onnx.numpy_helper.to_array(damaged).copy()
    numbers[:] = value
    damaged.CopyFrom(onnx.numpy_helper.from_array(numbers, damaged.name))
    onnx.save(model, good)
    refused(good, reason)


def test_bits_that_are_not_supported(tmp_path: Path) -> None:
    refused(write(tmp_path / "heads.pt", medusa(1, False).state_dict()), "weights of 5 bits", bits=5)


def test_more_than_an_onnx_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.medusa.onnx.graph.LARGEST_BYTES", 1000)
    path = write(tmp_path / "heads.pt", medusa(1, False).state_dict())
    refused(path, r"takes 0\.0 GB as ONNX, and 2 are the most: medusaq slice-heads cuts")


@pytest.mark.parametrize("bits", [8, 4])
def test_what_is_counted_beforehand_is_the_file_but_for_names(bits: int) -> None:
    model = default_model_path()
    shape = read_shape(model)
    weights = HeadWeights(
        str(shipped_heads(model)), shape.width, shape.vocab_size, lambda ids: lm_head_rows(model, ids)
    )
    counted = least_bytes(weights, bits)
    assert counted <= len(build(weights, bits)) < counted + 20_000 < 1.01 * counted


def test_what_is_not_counted_beforehand_is_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "heads.pt", medusa(1, True).state_dict())
    weights = HeadWeights(str(path), WIDTH, VOCAB, lm_head)
    monkeypatch.setattr("engine.medusa.onnx.graph.LARGEST_BYTES", least_bytes(weights, 8) + 10)
    refused(path, "as ONNX, and 2 are the most")


def test_what_protobuf_refuses_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.pt", medusa(1, True).state_dict())
    weights = HeadWeights(str(path), WIDTH, VOCAB, lm_head)
    weights.metadata = {"note": "\ud800"}
    with pytest.raises(HeadsLoadError, match=r"^cannot be written as ONNX: .*surrogates"):
        build(weights, 8)


# Export


def test_an_exported_file_names_its_model_and_is_whole(tiny_gguf: str, tmp_path: Path) -> None:
    state = {"0.0.linear.weight": torch.eye(64), "0.0.linear.bias": torch.zeros(64)}
    source = write(tmp_path / "heads.safetensors", state)
    out = tmp_path / "heads.onnx"
    assert export(str(source), out, tiny_gguf, 8).startswith("1 heads over 320 tokens in 8 bits, ")
    heads = onnx_heads(out, width=64, vocab_size=320)
    assert heads.metadata[FINGERPRINT] == fingerprint(tiny_gguf)
    with pytest.raises(HeadsLoadError, match="is ONNX already"):
        export(str(out), tmp_path / "again.onnx", tiny_gguf, 8)
    out.rename(tmp_path / "kept.onnx")
    out.mkdir()
    with pytest.raises(OSError, match="directory"):
        export(str(source), out, tiny_gguf, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "heads.onnx",
        "heads.safetensors",
        "kept.onnx",
    ]


# Where packages are missing


def without(modules: list[str], code: str, *arguments: str) -> str:
    """What this code prints in an interpreter that has none of these modules."""
    script = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


DRAFT = """
from engine import Decoding, EngineConfig, EngineService, Request, SamplingParams
service = EngineService(EngineConfig(slots=2, kv_cells=512, weights="as_shipped", heads=sys.argv[1] or None))
sampling = SamplingParams(max_tokens=16)
request = Request(id="a", prompt="Count to ten.", sampling=sampling, decoding=Decoding.MEDUSA)
done = service.submit(request).result()
print(done.drafted["medusa"].verified > 0, len(done.tokens))
service.close()
"""


def test_the_packaged_heads_need_no_torch() -> None:
    assert without(["torch"], DRAFT, "") == "True 16"


def test_an_exported_file_needs_neither_torch_nor_what_wrote_it(tmp_path: Path) -> None:
    out, shipped = tmp_path / "heads.onnx", shipped_heads(default_model_path())
    export(str(shipped), out, default_model_path(), 4)
    assert without(["torch", "onnx"], DRAFT, str(out)) == "True 16"


LOAD = """
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.loader import load_heads
try:
    print(load_heads(sys.argv[1], width=24, vocab_size=90, lm_head=None).heads, "torch" in sys.modules)
except HeadsLoadError as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    ("missing", "name", "said"),
    [
        ([], "heads.safetensors", "3 False"),
        ([], "heads.pt", "3 True"),
        (["torch"], "heads.safetensors", "3 True"),
        (["onnxruntime"], "heads.safetensors", "need onnxruntime: pip install 'medusaq[medusa]'"),
        (["onnxruntime"], "heads.pt", "need onnxruntime: pip install 'medusaq[medusa]'"),
        (["torch"], "heads.pt", "a pickle, which only torch reads: pip install 'medusaq[train]'"),
        (["torch", "onnx"], "heads.safetensors", "needs onnx: pip install 'medusaq[medusa]'"),
    ],
)
def test_missing_packages_are_named(tmp_path: Path, missing: list[str], name: str, said: str) -> None:
    path = write(tmp_path / name, medusa(1, True).state_dict())
    assert said in without(missing, LOAD, str(path))


PLAIN = """
from engine import EngineConfig, EngineService, Request, SamplingParams
service = EngineService(EngineConfig(slots=2, kv_cells=512, weights="as_shipped"))
done = service.submit(Request(id="a", prompt="Count to ten.", sampling=SamplingParams(max_tokens=4))).result()
print(*service.info.draft_sources, len(done.tokens))
service.close()
"""


def test_an_engine_without_the_packages_of_heads_drafts_without_heads() -> None:
    assert without(["gguf", "ml_dtypes", "onnx", "onnxruntime", "safetensors"], PLAIN) == "grammar lookup 4"
    assert without(["ml_dtypes"], PLAIN) == "grammar lookup 4"


def test_a_runtime_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.safetensors", medusa(1, True).state_dict())
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libgomp.so.1: cannot open')")
    said = without([], f"sys.path.insert(0, {str(tmp_path)!r})\n{LOAD}", str(path))
    assert said == "onnxruntime is installed and cannot be imported: libgomp.so.1: cannot open"
