"""Names of weights in files of draft heads, and which of a folder's files count."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.medusa.layouts import HeadsLoadError, files_of, keys_of_heads, read_config, recognise

V1 = [
    f"{h}.{key}"
    for h in range(3)
    for key in ("0.linear.weight", "0.linear.bias", "1.linear.weight", "2.weight")
]
V2 = [key for key in V1 if not key.endswith(".2.weight")]
VLLM = [f"blocks.{h}.layers.{i}.weight" for h in range(3) for i in range(2)]


def test_v1_has_an_lm_head_for_each_head() -> None:
    layout = recognise(V1)
    assert layout.lm_heads == ["0.2.weight", "1.2.weight", "2.2.weight"]
    assert layout.layers[1] == [("1.0.linear.weight", "1.0.linear.bias"), ("1.1.linear.weight", None)]
    assert layout.token_map is None


def test_v2_has_none() -> None:
    layout = recognise([*V2, "token_map"])
    assert (len(layout.layers), len(layout.layers[0])) == (3, 2)
    assert not layout.lm_heads
    assert layout.token_map == "token_map"


@pytest.mark.parametrize("prefix", ["medusa_head.", "model.medusa_head.", "medusa_heads."])
def test_full_models_keep_either_below_a_prefix(prefix: str) -> None:
    keys = ["model.embed_tokens.weight", "lm_head.weight", *(prefix + key for key in V1)]
    layout = recognise(keys_of_heads(keys))
    assert layout.lm_heads[2] == prefix + "2.2.weight"
    assert len(layout.layers) == 3


@pytest.mark.parametrize("own", [0, 1, 3])
def test_vllm_has_an_lm_head_for_each_head_or_one_or_none(own: int) -> None:
    layout = recognise([*VLLM, *(f"lm_heads.{h}.weight" for h in range(own)), "token_map"])
    assert (len(layout.layers), len(layout.layers[0]), len(layout.lm_heads)) == (3, 2, own)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([], "no draft heads"),
        (["token_map", "0.1.weight"], "no draft heads"),
        (["model.layers.0.weight"], "no known layout"),
        ([*V2, "0.0.norm.weight"], "'0.0.norm.weight' belongs to no known layout"),
        ([*V2, "5.0.linear.weight"], "head 3 of 6 lacks the weight of layer 0 of 2"),
        ([*V2, "2.2.linear.bias"], "head 0 of 3 lacks the weight of layer 2 of 3"),
        ([key for key in V2 if key != "1.1.linear.weight"], "head 1 of 3 lacks the weight of layer 1 of 2"),
        (V1[:-1], "2 of 3 heads have an lm_head of their own"),
        ([*V2, "0.2.weight"], "1 of 3 heads have an lm_head of their own"),
        ([*VLLM, "lm_heads.0.weight", "lm_heads.2.weight"], "2 of 3 heads"),
        ([*V2, "0.7.weight"], "an lm_head is in place 7 of a head of 2 layers"),
        (["9" * 5000 + ".0.linear.weight"], "no known layout"),
        (["a\nb" * 1000], "no known layout"),
    ],
)
def test_holes_and_strangers_are_refused(keys: list[str], reason: str) -> None:
    with pytest.raises(HeadsLoadError, match=reason) as refused:
        recognise(keys)
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 200


def test_a_folder_is_read_from_the_best_kind_of_file(tmp_path: Path) -> None:
    expected = []
    for name in ("pytorch_model.bin", "heads.pt", "model-1.safetensors", "medusa_lm_head.pt"):
        (tmp_path / name).touch()
        expected = [tmp_path / name]
        assert files_of(tmp_path) == expected
    assert files_of(tmp_path / "heads.pt") == [tmp_path / "heads.pt"]


def test_shards_are_read_together(tmp_path: Path) -> None:
    for name in ("model-2.safetensors", "model-1.safetensors"):
        (tmp_path / name).touch()
    assert [file.name for file in files_of(tmp_path)] == ["model-1.safetensors", "model-2.safetensors"]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(HeadsLoadError, match="no such file or folder"):
        files_of(tmp_path / "missing")
    with pytest.raises(HeadsLoadError, match=r"a folder without heads: none of medusa_lm_head\.safetensors"):
        files_of(tmp_path)


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000, b"[]"])
def test_a_damaged_config_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(HeadsLoadError, match=r"config\.json"):
        read_config(tmp_path / "config.json")
