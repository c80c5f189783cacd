"""What a compilation is refused for before the work begins, and records that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compiling.base import resource_check
from compiling.base.errors import CompileError, FormatError, RoomError, SourceError
from compiling.base.formats import chosen_types, read_source
from compiling.base.state import NAME, Record
from compiling.result.compilation import Options
from compiling.run import WORK, compile_model
from engine import ModelLoadError
from engine.host.system_memory import Memory
from tests.chaos.faults.disk import small_disk
from tests.compiling.helpers.compilations import Steps, given, names

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_engines")]


def test_names_are_checked_before_a_checkpoint_is_converted(tmp_path: Path) -> None:
    options = Options(source="no/such-model", folder=tmp_path / "out", types=("q9_9",))
    with pytest.raises(FormatError, match="no type q9_9"):
        compile_model(options, Steps())
    assert not (tmp_path / "out").exists()


def test_types_that_cannot_be(models: Path, tmp_path: Path) -> None:
    def refused(*types: str) -> str:
        with pytest.raises(FormatError) as caught:
            compile_model(replace(given(models, tmp_path / "out"), types=types), Steps())
        assert not list((tmp_path / "out").glob("*.gguf"))
        return str(caught.value)

    assert refused("q8_0", "q9_9").startswith("no type q9_9; there are f32, f16, bf16, q8_0, q6_k")
    assert refused("").startswith("no type (empty); there are")
    assert refused("q4_k_m").startswith("q4_k_m: it packs 256 weights of a row together, which forbids ")
    assert refused("iq2_xs") == "iq2_xs needs an importance matrix: give --imatrix TEXT"


def test_by_default_what_fits_the_shapes(models: Path) -> None:
    types, left_out = chosen_types(None, read_source(str(models / "tiny.f32.gguf")), with_importance=False)
    assert types == ["bf16", "q8_0", "q5_0", "iq4_nl", "q4_0"]
    assert [line.partition(":")[0] for line in left_out] == [
        f"{name} is left out" for name in ("q6_k", "q5_k_m", "q4_k_m")
    ]
    assert left_out[1].endswith("; q5_0 takes its place")


def test_files_of_others_are_left_alone(models: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "tiny.q8_0.gguf"
    theirs.write_bytes(b"precious")
    with pytest.raises(CompileError, match=r"tiny\.q8_0\.gguf: exists and was not made here; move it"):
        compile_model(given(models, tmp_path), Steps())
    assert theirs.read_bytes() == b"precious"


def test_a_folder_that_cannot_be_written(models: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RoomError, match=r"file/out: cannot be written: Not a directory$"):
        compile_model(given(models, tmp_path / "file" / "out"), Steps())


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Path]:
    """On a disk that is full but for a little."""
    disk = small_disk(tmp_path / "disk")
    if disk is None:
        pytest.skip("no small disk can be mounted here")
    with disk.full():
        ballast = disk.folder / "ballast"
        os.truncate(ballast, ballast.stat().st_size - 300_000)
        yield disk.folder
    disk.close()


def test_too_little_disk(models: Path, small_folder: Path) -> None:
    with pytest.raises(RoomError, match=r"[\d.]+ [kMG]B of disk are needed, [\d.]+ kB are free; name fewer"):
        compile_model(given(models, small_folder), Steps())
    assert names(small_folder) <= {"ballast", WORK}
    assert not list((small_folder / WORK).iterdir())


def test_too_little_memory(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is short of memory for a tiny model, so the reading is another."""
    monkeypatch.setattr(resource_check, "look_at_memory", lambda: Memory(10**9, 2 * 10**8))
    message = r"tiny.f32.gguf: 30\d MB of memory are needed to measure it, for a file of \d+ kB"
    with pytest.raises(RoomError, match=message):
        compile_model(given(models, tmp_path), Steps())
    assert not list(tmp_path.glob("*.gguf"))


def test_sources_that_are_none(models: Path, tmp_path: Path) -> None:
    damaged, other = tmp_path / "damaged.gguf", tmp_path / "other.gguf"
    damaged.write_bytes((models / "tiny.f32.gguf").read_bytes()[:5000])
    other.write_text("no model")
    for source, message in (
        (tmp_path / "none.gguf", "no such file"),
        (damaged, "cannot load it"),
        (other, "not a GGUF file"),
    ):
        with pytest.raises((SourceError, ModelLoadError), match=message):
            compile_model(replace(given(models, tmp_path / "out"), source=str(source)), Steps())


@pytest.mark.parametrize("option", ["text", "imatrix"])
def test_texts_that_are_none(models: Path, tmp_path: Path, option: str) -> None:
    steps = Steps()
    with pytest.raises(SourceError, match="none: cannot be read: No such file"):
        compile_model(replace(given(models, tmp_path), **{option: tmp_path / "none"}), steps)
    assert steps.begun == []


# The record


def test_a_record_is_kept_whole(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.put("speed", {"a": 1.5}, "model", 3)
    assert Record(tmp_path).get("speed", "model", 3) == {"a": 1.5}
    assert Record(tmp_path).get("speed", "model", 4) is None
    assert Record(tmp_path).get("quality", "model", 3) is None
    assert names(tmp_path) == {NAME}


@pytest.mark.parametrize("content", ["{", "[1]", '{"made": 3}'])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(CompileError, match=r"compile\.json: damaged; remove it and the GGUFs beside it"):
        Record(tmp_path)


def test_a_record_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(RoomError, match=r"compile\.json: cannot be read: Is a directory$"):
        Record(tmp_path)
    record = Record(tmp_path / "none")
    with pytest.raises(RoomError, match=r"compile\.json: cannot be written: No such file"):
        record.put("speed", 1)
