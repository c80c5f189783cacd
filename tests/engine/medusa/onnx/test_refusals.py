"""ONNX files of heads that must be refused, and how large a file may be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine.llama.model import default_model_path, read_shape
from engine.medusa.layouts import HeadsLoadError
from engine.medusa.model_rows import ModelRows
from engine.medusa.onnx.format import ABOUT
from engine.medusa.onnx.graph import build, least_bytes
from engine.medusa.weights import HeadWeights
from engine.speculative.setup import shipped_heads
from tests.engine.helpers.torch_heads import (
    MODEL_ROWS,
    VOCAB,
    WIDTH,
    mapped,
    medusa,
    onnx_heads,
    write,
    written,
)

pytestmark = pytest.mark.slow


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
    refused(path, "cannot be read as ONNX|no draft heads in it")


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file(good: Path, share: float) -> None:
    content = good.read_bytes()
    good.write_bytes(content[: int(len(content) * share)])
    refused(good, "cannot be read as ONNX|no draft heads in it")


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
    refused(path, "no draft heads in it: medusaq export-heads writes files that have")
    sizes = {"heads": 2, "layers": 1, "width": WIDTH, "vocab_size": VOCAB, "rows": 9, "bits": 8}
    helper.set_model_props(model, {ABOUT: json.dumps(sizes)})
    onnx.save(model, path)
    refused(path, "its heads do not run")


@pytest.mark.parametrize("about", ["[]", "{}", '{"heads": "many"}', "{", "null"])
def test_sizes_that_say_nothing(good: Path, about: str) -> None:
    model = onnx.load(good)
    helper.set_model_props(model, {ABOUT: about})
    onnx.save(model, good)
    refused(good, "no draft heads in it")


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
    weights = HeadWeights(str(shipped_heads(model)), shape.width, shape.vocab_size, ModelRows(model))
    counted = least_bytes(weights, bits)
    assert counted <= len(build(weights, bits)) < counted + 20_000 < 1.01 * counted


def test_what_is_not_counted_beforehand_is_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "heads.pt", medusa(1, True).state_dict())
    weights = HeadWeights(str(path), WIDTH, VOCAB, MODEL_ROWS)
    monkeypatch.setattr("engine.medusa.onnx.graph.LARGEST_BYTES", least_bytes(weights, 8) + 10)
    refused(path, "as ONNX, and 2 are the most")


def test_what_protobuf_refuses_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "heads.pt", medusa(1, True).state_dict())
    weights = HeadWeights(str(path), WIDTH, VOCAB, MODEL_ROWS)
    weights.metadata = {"note": "\ud800"}
    with pytest.raises(HeadsLoadError, match=r"^cannot be written as ONNX: .*surrogates"):
        build(weights, 8)
