"""What a model needs in memory, told from its file: what changes it, and that a real worker keeps to it."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.base.config import DEFAULT_PREFIX_CACHE_TOKENS, EngineConfig
from engine.base.errors import ModelLoadError
from engine.core.layout_setup import lane_cells
from engine.host.measurement_cache import write_measurement
from engine.llama.model import default_model_path, read_shape
from engine.tools.memory_estimate import (
    BUFFERS,
    CACHE,
    HEADS,
    PREFIXES,
    PROCESS,
    TORCH_BYTES,
    WEIGHTS,
    needed,
)
from engine.weights.format_selection import Timing, _key
from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tests.engine.helpers.tiny import write_tiny_gguf, write_tiny_mamba
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.records import ended, queued

UNDER, OVER = 1.05, 1.10  # how far a worker's peak may be above the estimate, and the estimate above the peak
ONE = EngineConfig(weights="as_shipped", speculation=False)
SHORT, LONG = 24, 8  # jobs: more than the slots, and last prompts that are more than the prefix cache holds


@pytest.mark.thorough
def test_a_real_worker_of_the_default_model_needs_what_was_estimated(
    settings: Settings, store: JobStore, workers: Workers
) -> None:
    config = EngineConfig(weights="as_shipped", threads=settings.threads)
    estimate = needed(config).total  # before: what is timed once needs more
    changes = {"weights": config.weights, "slots": config.slots, "kv_cells": config.kv_cells}
    settings = settings.model_copy(update=changes | {"lease_ms": 60_000})
    worker = workers.model(settings, ready=False, engine="engine:load")
    jobs = [queued(store, _prompt(n)) for n in range(SHORT + LONG)]
    wait_until(lambda: store.get(jobs[0]).terminal, 120, alive=lambda: worker.process.poll() is None)
    for job in [*jobs, queued(store, "Say why the sea is salty, alone.")]:
        assert ended(store, job, 120).result is not None
    status = Path(f"/proc/{worker.process.pid}/status").read_text(encoding="utf-8")
    [peak_kb] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    peak = int(peak_kb) * 1024
    assert peak / UNDER <= estimate <= peak * OVER


def _prompt(number: int) -> str:
    """Short, or, of those whose prompts are kept, hundreds of tokens that begin as no other prompt does."""
    return f"Name colour {number}." if number < SHORT else f"{number}: " + "Say why the sea is salty. " * 60


def test_the_parts_of_the_default_model() -> None:
    shape = read_shape(default_model_path())
    parts = needed(ONE).parts
    assert parts[WEIGHTS] == shape.weight_bytes
    lane = lane_cells(ONE, shape, None)
    least = (ONE.kv_cells + ONE.slots * lane) * shape.cell_bytes
    assert least < parts[CACHE] < 1.05 * least, "llama.cpp rounds up to 256 cells"
    assert parts[PREFIXES] == DEFAULT_PREFIX_CACHE_TOKENS * shape.cell_bytes
    assert parts[BUFFERS] > 64 * shape.vocab_size * 4, "the logits of a step"
    assert parts[HEADS] == 0
    assert needed(ONE).total == sum(parts.values())
    assert [name for name, _ in needed(ONE).largest][:2] == [CACHE, PROCESS]


@pytest.mark.slow
def test_what_changes_it() -> None:
    base = needed(ONE).parts
    shape = read_shape(default_model_path())

    def changed(**fields: object) -> dict[str, int]:
        parts = needed(replace(ONE, **fields)).parts  # type: ignore[arg-type]  # of any setting
        return {name: parts[name] for name in parts if parts[name] != base[name]}

    half = changed(kv_cells=4096)
    lanes = (1280 - 768) * ONE.slots  # 5/32 of both, in steps of 256
    assert base[CACHE] - half[CACHE] == (4096 + lanes) * shape.cell_bytes
    wide = changed(kv_type="f32")
    assert (wide[CACHE], wide[PREFIXES]) == (2 * base[CACHE], 2 * base[PREFIXES])
    assert changed(weights="bf16") == {WEIGHTS: 2 * shape.parameters}
    assert set(changed(batch_invariant=True)) == {BUFFERS}, "its calls have fewer rows"
    assert changed(speculation=True)[HEADS] > 0, "the package has heads for this model"
    assert changed(slots=64)[BUFFERS] > base[BUFFERS]
    assert base[CACHE] - changed(slots=1)[CACHE] == ONE.slots * 1280 * shape.cell_bytes, "without lanes"
    assert changed(prefix_sharing=False) == {PREFIXES: 0}
    assert changed(prefix_cache_bytes=7) == {PREFIXES: 7}


def test_lanes_take_a_share_of_the_memory_beside_the_weights_at_most() -> None:
    weights = read_shape(default_model_path()).weight_bytes
    enough, none = needed(ONE).parts[CACHE], needed(replace(ONE, slots=1)).parts[CACHE]
    shares = [needed(ONE, weights + beside).parts[CACHE] for beside in (10**8, 10**9, 10**10)]
    assert shares[0] == none < shares[1] < shares[2] == enough
    assert shares[1] - none <= 0.25 * 10**9


def test_weights_are_counted_in_the_format_that_was_measured_to_be_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    auto, shape = replace(ONE, weights="auto"), read_shape(default_model_path())
    assert needed(auto).parts[WEIGHTS] == 2 * shape.parameters, "unmeasured: the larger one"
    slow, fast = Timing(1.0, 4.0, 0.1, 16), Timing(1.0, 1.0, 0.02, 16)
    key = _key(default_model_path(), auto)
    write_measurement("formats", key, {"as_shipped": asdict(fast), "bf16": asdict(slow)})
    assert needed(auto).parts[WEIGHTS] == shape.weight_bytes
    write_measurement("formats", key, {"as_shipped": asdict(slow), "bf16": asdict(fast)})
    assert needed(auto).parts[WEIGHTS] == 2 * shape.parameters


def test_a_small_model_and_a_recurrent_one(tmp_path: Path) -> None:
    tiny = replace(ONE, model=write_tiny_gguf(tmp_path / "tiny.gguf"), speculation=True)
    assert needed(tiny).parts[HEADS] == 0, "none come with the package"
    mamba = replace(ONE, model=write_tiny_mamba(tmp_path / "mamba.gguf"))
    cache = needed(mamba).parts[CACHE]
    assert cache > 0, "it keeps a state for each sequence"
    assert needed(replace(mamba, kv_cells=65_536)).parts[CACHE] == cache, "whatever its length"


def test_heads_of_ones_own(tmp_path: Path) -> None:
    heads = tmp_path / "heads.safetensors"
    heads.write_bytes(b"\0" * 5_000_000)
    own = replace(ONE, speculation=True, heads=str(heads))
    other = replace(own, heads=str(tmp_path))
    assert needed(own).parts[HEADS] == needed(other).parts[HEADS] > 5_000_000
    with pytest.raises(ModelLoadError, match=r"none\.safetensors"):
        needed(replace(own, heads=str(tmp_path / "none.safetensors")))


def test_heads_take_what_runs_and_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: tmp_path / name for name in ("heads.safetensors", "heads.onnx", "heads.pt")}
    for path in files.values():
        path.write_bytes(b"\0" * 1_000_000)
    speculating = replace(ONE, speculation=True)
    parts = {name: needed(replace(speculating, heads=str(p))).parts[HEADS] for name, p in files.items()}
    assert 0 < parts["heads.safetensors"] == parts["heads.onnx"] == parts["heads.pt"] - TORCH_BYTES
    installed = find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "onnxruntime" else installed(name)
    )
    assert needed(speculating).parts[HEADS] == 0, "the packaged ones are not loaded then"
    with pytest.raises(ModelLoadError, match=r"heads\.pt: draft heads need onnxruntime: pip install"):
        needed(replace(speculating, heads=str(files["heads.pt"])))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and no more")
    with pytest.raises(ModelLoadError, match=re.escape(str(path))):
        needed(replace(ONE, model=str(path)))
