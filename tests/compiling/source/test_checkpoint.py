"""Folders that are not whole, each told in one line before anything is converted."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from compiling.base.errors import SourceError
from compiling.source.checkpoint import read_checkpoint, wanted_files
from tests.compiling.helpers.small_models import write_checkpoint, write_vicuna

FIRST = "model-00001-of-00002.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("whole") / "llama", "llama")


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "llama"))


def test_a_whole_folder_tells_its_weights(whole: Path) -> None:
    read = read_checkpoint(whole, "llama")
    assert read.format == "f32"
    assert [file.name for file in read.files] == [FIRST, FIRST.replace("00001-", "00002-")]
    total = json.loads((whole / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    assert read.numbers * 4 == total


@pytest.mark.parametrize(
    ("dtype", "format"), [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")]
)
def test_the_format_is_that_of_the_weights(tmp_path: Path, dtype: torch.dtype, format: str) -> None:
    folder = write_checkpoint(tmp_path / "one", "qwen2", dtype=dtype, shards=1)
    assert read_checkpoint(folder, "one").format == format


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Callable[[Path], None]:
    def half(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return half


def write(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: void((folder / name).write_bytes(data))


def void(_written: int) -> None:
    pass


def only_parts(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    (folder / FIRST).unlink()


def name_outside(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(FIRST, "../secret.safetensors"))


def become_ggufs(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "model.gguf").write_bytes(b"GGUF")


def lose_weights(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (remove("config.json"), "no config.json, so not a Hugging Face checkpoint"),
        (become_ggufs, "give the GGUF itself"),
        (cut("config.json"), "config.json: not JSON, so damaged or cut off"),
        (write("config.json", b"[]"), "config.json: holds no settings"),
        (remove(FIRST), f"half-downloaded: {FIRST} of 2 files missing"),
        (only_parts, f"half-downloaded: {FIRST} of 1 files missing"),
        (cut(FIRST), f"{FIRST}: damaged or cut off"),
        (write(FIRST, b""), f"{FIRST}: empty, so half-downloaded"),
        (write(FIRST, POINTER), f"{FIRST}: only a pointer of Git LFS"),
        (name_outside, "names '../secret.safetensors', which is not a file of the folder"),
        (write("model.safetensors.index.json", b"{}"), "names no files"),
        (lose_weights, "no weights: neither model*.safetensors nor pytorch_model*.bin"),
        (remove("tokenizer.model"), "no tokenizer (one of tokenizer.model,"),
        (write("tokenizer.model", POINTER), "tokenizer.model: only a pointer of Git LFS"),
    ],
)
def test_what_is_missing_or_cut_off_is_named(copy: Path, harm: Callable[[Path], None], said: str) -> None:
    harm(copy)
    with pytest.raises(SourceError) as caught:
        read_checkpoint(copy, "llama")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


class Evil:
    """What a pickle may hold: reading it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path, bytes], int], tuple[Path, bytes]]:
        return Path.write_bytes, (self.path, b"ran")


@pytest.mark.usefixtures("forked_converters")
@pytest.mark.slow
def test_pickles_are_read_without_running_anything(tmp_path: Path) -> None:
    folder = write_vicuna(tmp_path / "vicuna")
    assert read_checkpoint(folder, "vicuna").format == "f16"
    ran = tmp_path / "ran"
    first = folder / "pytorch_model-00001-of-00002.bin"
    torch.save({"weight": Evil(ran)}, first)
    with pytest.raises(SourceError, match="could run code") as caught:
        read_checkpoint(folder, "vicuna")
    assert len(str(caught.value).splitlines()) == 1
    assert not ran.exists()
    torch.load(first, weights_only=False)
    assert ran.exists(), "the pickle is one that runs"


def test_cut_off_pickles_are_named(tmp_path: Path) -> None:
    folder = write_vicuna(tmp_path / "vicuna")
    cut("pytorch_model-00002-of-00002.bin")(folder)
    with pytest.raises(SourceError, match=r"pytorch_model-00002-of-00002.bin: cut off, or not of PyTorch"):
        read_checkpoint(folder, "vicuna")


@pytest.mark.usefixtures("forked_converters")
@pytest.mark.slow
def test_a_zip_that_is_no_model_is_named(tmp_path: Path) -> None:
    folder = write_vicuna(tmp_path / "vicuna")
    with zipfile.ZipFile(folder / "pytorch_model-00001-of-00002.bin", "w") as made:
        made.writestr("archive/data.pkl", pickle.dumps([1]))
    with pytest.raises(SourceError, match=r"pytorch_model-00001-of-00002.bin: "):
        read_checkpoint(folder, "vicuna")


def test_of_a_repository_the_safetensors_are_wanted_and_never_both() -> None:
    both = [
        "config.json",
        "model-00001-of-00001.safetensors",
        "pytorch_model.bin",
        "a.py",
        "onnx/config.json",
    ]
    assert wanted_files(both) == ["config.json", "model-00001-of-00001.safetensors"]
    assert wanted_files(["pytorch_model.bin", "tokenizer.model"]) == ["tokenizer.model", "pytorch_model.bin"]
