"""What `medusaq doctor` says of the model, its heads and the build of llama.cpp, by causing it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from cli.doctor import engine
from cli.doctor.findings import Finding, Grade, fail, guarded, ok
from common.llama_build import KERNELS_VARIABLE, USE_VARIABLE, Use, rebuild
from engine import EngineConfig
from engine.host.measurement_cache import write_measurement
from engine.llama.devices import devices
from engine.llama.model import default_model_path, read_shape
from engine.weights.format_selection import Timing, _key
from engine.weights.saved_format import SavedFormat, save_format
from tasks.base.settings import Settings
from tests.cli.helpers.findings import examined, only
from tests.cli.helpers.in_process import InProcessCli
from tests.cli.helpers.running import Cli
from tests.engine.helpers.tiny import write_tiny_gguf, write_tiny_mamba
from tests.support.workers import ROOT

pytestmark = pytest.mark.slow


def of_model(**changes: Any) -> dict[str, list[Finding]]:
    """What it says of the model and its heads, without a look at the rest."""
    settings = Settings(_env_file=None, **{"speculation": False, **changes})  # type: ignore[call-arg]  # pydantic
    found: dict[str, list[Finding]] = {}
    for finding in guarded("model", partial(engine.model, settings)):
        assert bool(finding.mend) == (finding.grade is not Grade.OK), finding
        found.setdefault(finding.check, []).append(finding)
    return found


def test_a_model_that_is_away_and_one_that_was_cut_off(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(default_model_path()).read_bytes()[:9_000_000])
    assert "cut.gguf" in only(of_model(model=str(cut)), "model", Grade.FAIL).what
    away = of_model(model=str(tmp_path / "away.gguf"))
    assert "no such file" in only(away, "model", Grade.FAIL).what


def test_the_format_that_the_engine_selects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = default_model_path()
    config, shape = EngineConfig(model=path), read_shape(path)

    def said(config: EngineConfig = config) -> str:
        return engine._selected(config, path, shape).what

    assert said() == "computed as in the file until a worker has measured, while idle, whether BF16 is faster"
    assert said(replace(config, batch_invariant=True)) == "computed as in the file"
    faster = "computed in BF16, which is faster on this machine"
    for bf16, expected in ((0.1, faster), (9, "computed as in the file")):
        times = {
            "as_shipped": asdict(Timing(1, 1, 1, slots=1)),
            "bf16": asdict(Timing(bf16, bf16, bf16, slots=1)),
        }
        write_measurement("formats", _key(path, config), times)
        assert said() == expected


def test_the_format_that_was_chosen_for_this_machine(
    in_process: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_gguf = write_tiny_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    in_process.env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    none = only(of_model(model=tiny_gguf, weights="for_this_machine"), "weights", Grade.FAIL)
    assert none.what.endswith(f"nothing was measured yet for {tiny_gguf} on this machine")
    assert none.mend.startswith(f"medusaq compile {tiny_gguf} --for-this-machine; ")
    save_format(tiny_gguf, SavedFormat("source (f32)", None, "bulk", 0.02, "nothing else was faster in bulk"))
    found = examined(in_process, MEDUSAQ_MODEL=tiny_gguf, MEDUSAQ_WEIGHTS="for_this_machine")
    chosen = "computed as source (f32), chosen for this machine: nothing else was faster in bulk"
    assert only(found, "weights", Grade.OK).what == chosen
    assert "memory" in found
    assert "off" in only(found, "heads", Grade.OK).what


def test_llama_cpp_is_compiled_anew_in_the_version_that_is_required() -> None:
    required = f"'llama-cpp-python=={metadata.version('llama-cpp-python')}'"
    assert engine.rebuild().endswith(f"--no-binary llama-cpp-python {required}")


def test_how_long_lanes_are_and_what_longer_ones_cost(tmp_path: Path) -> None:
    found = of_model(slots=4, kv_cells=2048)
    what = "4 of 496 tokens; twice as long ones would take 47 MB more"
    assert only(found, "lanes", Grade.OK).what == what
    assert "lanes" not in of_model(slots=1)
    assert "lanes" not in of_model(model=write_tiny_mamba(tmp_path / "mamba.gguf"))


def test_lanes_for_which_memory_is_short() -> None:
    config, shape = EngineConfig(), read_shape(default_model_path())
    shorter = engine.lanes(config, shape, shape.weight_bytes + 10**9)
    assert (shorter.grade, shorter.check) == (Grade.WARN, "lanes")
    assert shorter.what.startswith("16 of 496 tokens; ")
    assert shorter.what.endswith("with more memory: 16 lanes of 1264 tokens")
    none = engine.lanes(config, shape, shape.weight_bytes + 10**8)
    assert none.grade is Grade.WARN
    assert none.what.startswith("too little memory for 16 lanes of 1264 tokens: ")
    assert engine.lanes(config, shape, 10**10).grade is Grade.OK


def test_on_a_gpu_lanes_are_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less what the weights and the shared cache will take of it."""
    config, shape = EngineConfig(), read_shape(default_model_path())
    monkeypatch.setattr("engine.core.layout_setup.on_gpu", lambda _layers: True)
    for beside_weights, grade in ((10**8, Grade.WARN), (10**10, Grade.OK)):
        free = shape.weight_bytes + beside_weights
        monkeypatch.setattr("engine.core.layout_setup.free_device_memory", lambda free=free: free)
        assert engine.lanes(config, shape, 10**9).grade is grade


def test_what_computes_is_named_and_what_it_gains() -> None:
    [found] = engine.kernels()
    assert found.grade is Grade.OK
    assert re.fullmatch(
        r"AVX.*: beside llama.cpp's own, .* a prompt is read \d+\.\d times as fast", found.what
    )


def test_why_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USE_VARIABLE, Use.PLAIN_BUFFERS)
    [found] = engine.kernels()
    assert found.grade is Grade.WARN
    assert found.what == (
        "llama.cpp computes with its own, which are slower: nothing but plain buffers is used here"
    )
    assert found.mend == rebuild()


@pytest.mark.parametrize(
    ("why", "mend"),
    [
        (
            "no C++ compiler (c++) is here to make them",
            f"C++ compiler, then: {sys.executable} -m engine.kernels",
        ),
        ("this processor has no AVX2", ""),
    ],
)
def test_kernels_can_be_had_where_a_next_step_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str, mend: str
) -> None:
    (tmp_path / "no_kernels.py").write_text(f"raise SystemExit({why!r})", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(engine, "KERNEL_GAIN", "no_kernels")
    [found] = engine.kernels()
    assert found.what.endswith(f", which are slower: {why}")
    assert (found.grade is Grade.WARN) == bool(mend)
    assert found.mend.endswith(mend)


def test_kernels_that_are_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "off")
    [found] = engine.kernels()
    assert (found.grade, found.mend) == (Grade.WARN, "unset MEDUSAQ_KERNELS")


def test_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    none = [finding.check for finding in engine.build(0)]
    assert none == ["llama.cpp"] or devices()
    asked = engine.ASK_BUILD.replace("devices())]", "devices()), 'Vulkan0: a card']")
    monkeypatch.setattr(engine, "ASK_BUILD", asked)
    *others, last = engine.build(0)
    assert len(others) == len(none)
    assert last == ok("gpu", "Vulkan0: a card")


def test_a_gpu_that_is_not_found_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = engine.ASK_BUILD.replace("idle_backends()]", "['CUDA']]")
    monkeypatch.setattr(engine, "ASK_BUILD", asked)
    *_, last = engine.build(-1)
    assert (last.grade, last.check) == (Grade.WARN, "gpu")
    assert last.what == "llama.cpp finds none for CUDA: the processor computes"
    assert [finding.check for finding in engine.build(0)] == ["llama.cpp"]


def test_a_missing_driver_is_no_reason_to_build_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "libcuda.so.1: cannot open shared object file: No such file or directory"
    monkeypatch.setattr(engine, "ASK_BUILD", f"raise SystemExit({why!r})")
    assert list(engine.build(-1)) == [fail("llama.cpp", f"cannot be loaded: {why}", engine.DRIVER)]


def test_what_runs_the_heads_is_named() -> None:
    found = of_model(speculation=True)
    assert only(found, "heads", Grade.OK).what.endswith("4 of them, run by ONNX Runtime (cpu)")


def test_heads_that_are_for_no_model_and_cells_that_do_not_fit(tmp_path: Path) -> None:
    heads = tmp_path / "heads.safetensors"
    heads.write_bytes(b"\0" * 64)
    found = of_model(speculation=True, heads=str(heads), kv_cells=10**9)
    assert "heads.safetensors" in only(found, "heads", Grade.FAIL).what
    assert "MEDUSAQ_KV_CELLS" in only(found, "memory", Grade.FAIL).mend
    assert only(found, "context", Grade.WARN)


@pytest.mark.parametrize(
    ("cells", "trained", "longest", "beside", "grade"),
    [
        (8192, 8192, 8192, "together", Grade.OK),
        (8192, 131_072, 8192, "the model was trained for 131072", Grade.OK),
        (8192, 4096, 4096, "together", Grade.OK),
        (8193, 2048, 2048, "4 slots cannot fill 8193 KV cells", Grade.WARN),
    ],
)
def test_how_long_a_request_may_be(cells: int, trained: int, longest: int, beside: str, grade: Grade) -> None:
    found = engine.context(cells, 4, trained)
    assert found.grade is grade
    assert found.what.startswith(f"requests of up to {longest} tokens, prompt and answer")
    assert beside in found.what
    assert bool(found.mend) is (grade is Grade.WARN)


def test_a_build_without_what_the_processor_has() -> None:
    built = "0.3.36 CPU : SSE3 = 1 | AVX = 1 | AVX2 = 0 | OPENMP = 1 | "
    slow = engine.compared(built, {"avx", "avx2", "fma"})
    assert slow.grade is Grade.WARN
    assert "without AVX2, FMA" in slow.what
    assert engine.compared(built, set()).grade is Grade.OK, "a system that does not tell"


def test_a_build_that_cannot_be_loaded(cli: Cli) -> None:
    """A broken package in the way of the real one."""
    broken = cli.folder / "broken" / "llama_cpp"
    broken.mkdir(parents=True)
    path = f"{broken.parent}{os.pathsep}{ROOT}"
    (broken / "__init__.py").write_text("raise OSError('libllama.so: cannot open shared object file')\n")
    found = examined(cli, PYTHONPATH=path)
    assert "libllama.so" in only(found, "llama.cpp", Grade.FAIL).what
    (broken / "__init__.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)\n")
    ended = [*_built_with(path)]
    assert "SIGILL" in ended[0].what


def test_a_build_that_never_loads(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = cli.folder / "broken" / "llama_cpp"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import signal; signal.pause()\n")
    monkeypatch.setattr(engine, "BUILD_TIMEOUT_S", 0.5)
    [found] = _built_with(f"{broken.parent}{os.pathsep}{ROOT}")
    assert (found.check, found.grade) == ("llama.cpp", Grade.FAIL), "loading it here would hang as well"


def _built_with(path: str) -> Iterator[Finding]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        yield from engine.build(-1)
