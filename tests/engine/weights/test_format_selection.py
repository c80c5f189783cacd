"""The number format of the weights: when unpacking pays, what it does to outputs, and what goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import EngineConfig, ModelLoadError
from engine.host.idle_time import Piece
from engine.llama.model import Model, default_model_path
from engine.weights import format_selection
from engine.weights.format_selection import (
    REPEATED_S,
    Timing,
    _least_time,
    open_model,
    pays,
    time_formats,
    unpacked,
)
from engine.weights.quantise import requantise
from tests.engine.helpers.drive import opened
from tests.support.measuring.fidelity import divergence, log_probabilities

pytestmark = pytest.mark.usefixtures("forked_engines")
TEXT = "The harbour lay quiet under the first snow, and nobody on the pier had seen the boat come in. " * 4


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "medusaq"


@pytest.fixture(scope="module")
def packed(tiny_gguf: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model in Q4_1, which may be unpacked."""
    path = str(tmp_path_factory.mktemp("packed") / "packed.gguf")
    requantise(tiny_gguf, path, "q4_1", threads=1)
    return path


def timing(alone: float = 1.0, together: float = 8.0, prompt_token: float = 0.5) -> Timing:
    return Timing(alone, together, prompt_token, slots=16)


# When it pays


def test_it_pays_by_the_time_of_a_request_among_others() -> None:
    assert timing(together=16.0, prompt_token=0.5).request == pytest.approx(256 * 0.5 + 128)
    assert pays(timing(), timing(together=4.0, prompt_token=0.2))
    assert pays(timing(), timing(prompt_token=0.2)), "prompts alone may be worth it"
    assert not pays(timing(), timing())
    assert not pays(timing(), timing(together=7.5)), "a gain too small for the memory"
    halved = timing(alone=1.9, together=4.0, prompt_token=0.25)
    assert pays(timing(), halved)
    assert not pays(timing(), replace(halved, alone=2.1)), "a lone request loses more than others gain"


@pytest.mark.slow
def test_both_formats_are_timed(tiny_gguf: str) -> None:
    small, large = Model(tiny_gguf), Model(default_model_path())
    fast, slow = time_formats([small, large], EngineConfig(slots=4))
    assert 0 < fast.alone < slow.alone
    assert 0 < fast.together < slow.together
    assert 0 < fast.prompt_token < slow.prompt_token
    assert slow.alone < slow.together


@pytest.mark.parametrize(("bf16", "format"), [(timing(together=1.0), "BF16"), (timing(together=9.0), "Q4_1")])
@pytest.mark.usefixtures("cache")
def test_the_faster_one_is_taken_and_remembered(
    packed: str, bf16: Timing, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def measure(models: list[Model], config: EngineConfig, _piece: Piece) -> list[Timing]:
        measured.append(len(models) + config.slots)
        return [timing(), bf16]

    monkeypatch.setattr(format_selection, "time_formats", measure)
    for _ in range(2):
        model = open_model(EngineConfig(model=packed))
        assert format in model.description
        assert (model.name, model.path) == (Path(packed).stem, packed)
    assert measured == [18]
    open_model(EngineConfig(model=packed, slots=3))
    assert measured == [18, 5], "with other slots the other may be faster"


def test_what_is_asked_for_is_not_measured(packed: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(format_selection, "time_formats")
    assert "Q4_1" in open_model(EngineConfig(model=packed, weights="as_shipped")).description
    assert not cache.exists()
    assert "BF16" in open_model(EngineConfig(model=packed, weights="bf16")).description
    assert [path.suffix for path in cache.iterdir()] == [".gguf"]


@pytest.mark.usefixtures("cache")
def test_bit_identical_results_do_not_hang_on_a_measurement(
    packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(format_selection, "time_formats")
    invariant = EngineConfig(model=packed, batch_invariant=True)
    assert "Q4_1" in open_model(invariant).description
    assert "BF16" in open_model(replace(invariant, weights="bf16")).description


@pytest.mark.parametrize("format", ["f16", "bf16"])
def test_what_is_not_quantised_stays_as_it_is(
    cache: Path, tmp_path: Path, tiny_gguf: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(format_selection, "time_formats")
    requantise(tiny_gguf, str(tmp_path / "half.gguf"), format, threads=1)
    for path in (tiny_gguf, str(tmp_path / "half.gguf")):
        open_model(EngineConfig(model=path))
    assert not cache.exists()


@pytest.mark.parametrize("limit", ["UNASKED_BYTES", "_free_disk"])
def test_what_takes_more_room_than_offered_stays_as_it_is(
    cache: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(format_selection, "time_formats")
    monkeypatch.setattr(
        format_selection, limit, 200_000_000 if limit == "UNASKED_BYTES" else lambda: 200_000_000
    )
    assert "Q4_1" in open_model(EngineConfig()).description
    assert not cache.exists()


# What it does to outputs


@pytest.mark.slow
def test_unpacked_weights_come_nearer_to_what_the_file_says(tmp_path: Path) -> None:
    """F16 holds what a Q4_1 file says to a part in 2,048, and its kernels round no activations."""
    path, exact = default_model_path(), str(tmp_path / "exact.gguf")
    requantise(path, exact, "f16")
    truth = log_probabilities(exact, TEXT)
    shipped, bf16 = (divergence(truth, log_probabilities(p, TEXT)) for p in (path, unpacked(path)))
    assert 0 < bf16 < shipped / 4


# What goes wrong


@pytest.mark.parametrize("weights_as", ["auto", "as_shipped", "bf16"])
def test_a_missing_file_is_named(tmp_path: Path, weights_as: str) -> None:
    with pytest.raises(ModelLoadError, match=r"none\.gguf: no such file$"):
        open_model(EngineConfig(model=str(tmp_path / "none.gguf"), weights=weights_as))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(Path(default_model_path()).read_bytes()[:1_000_000])
    with pytest.raises(ModelLoadError, match=r"^\S*damaged\.gguf: llama\.cpp cannot write it as bf16: "):
        open_model(EngineConfig(model=str(damaged), weights="bf16"))


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    with caplog.at_level(logging.WARNING):
        assert "Q4_1" in open_model(EngineConfig()).description
    assert "weights stay as they are in the file" in caplog.text
    with pytest.raises(ModelLoadError, match=r"cannot be written: Not a directory$"):
        open_model(EngineConfig(weights="bf16"))


def test_a_damaged_unpacked_file(packed: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path(unpacked(packed)).write_bytes(b"GGUF, but no more")
    with caplog.at_level(logging.WARNING):
        assert "Q4_1" in open_model(EngineConfig(model=packed)).description
    assert f"{cache}/weights-" in caplog.text
    assert "llama.cpp cannot load it" in caplog.text


def test_an_engine_takes_the_format_from_its_settings(tiny_gguf: str) -> None:
    engine = opened(EngineConfig(model=tiny_gguf, weights="bf16", slots=2, kv_cells=256))
    assert "BF16" in engine.info.quantization
    assert engine.info.path == tiny_gguf


def test_a_short_call_is_timed_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fell into a burst of other load must not decide."""
    calls: list[float] = []
    clock = [1000.0]
    monkeypatch.setattr(format_selection, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def call(durations: Iterator[float]) -> None:
        calls.append(next(durations))
        clock[0] += calls[-1]

    assert _least_time(partial(call, chain([0.03], repeat(0.004)))) < 0.03
    assert len(calls) > 2
    calls.clear()
    assert _least_time(partial(call, repeat(REPEATED_S))) >= REPEATED_S
    assert len(calls) == 1, "an arriving request waits for it"
