"""A llama.cpp that dies on this machine is found before it serves: by one that does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common import llama_build
from common.llama_build import BuildDies, Use, try_build, verdict
from engine.host.file_digest import digest_file
from engine.tools.model_registry import NamedModel, Register
from tests.common import dying_llama
from tests.engine.helpers.tiny import write_tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dying_llama.build(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(autouse=True)
def _library(stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(llama_build.LIBRARY_VARIABLE, str(stub))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(llama_build.USE_VARIABLE, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def dies(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dying_llama.VARIABLE, when)


def test_one_that_works_is_used_as_built_and_not_tried_again(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = try_build({"model": model})
    assert (found.use, found.died_of, found.fault) == (Use.AS_BUILT, "", None)
    dies("always", monkeypatch)
    assert try_build({"model": model}) == found == verdict()
    with pytest.raises(BuildDies, match="SIGILL"):
        try_build({"model": model, "kv_type": "f32"})


@pytest.mark.parametrize("when", ["always", "rows", "load"])
def test_one_that_dies_in_every_way_is_refused_with_the_signal_and_the_build(
    when: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies(when, monkeypatch)
    with pytest.raises(BuildDies) as refused:
        try_build({"model": model})
    said = str(refused.value)
    assert "\n" not in said
    assert said.startswith(
        f"llama.cpp ends with SIGILL on this processor, {llama_build.processor()}; it was "
    )
    assert ("AVX2" in said) == (when != "load")
    assert verdict().decoded == (), "it is tried again"


def test_one_whose_extra_buffers_die_is_used_without_them(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies("buffers", monkeypatch)
    found = try_build({"model": model})
    assert (found.use, found.died_of) == (Use.PLAIN_BUFFERS, "SIGILL")
    assert found.fault is not None
    assert "SIGILL" in found.fault
    decode = [sys.executable, "-m", llama_build.TRIAL, json.dumps({"model": model})]
    assert subprocess.run(decode).returncode == 0, "every process follows the verdict"
    shutil.rmtree(llama_build.cache_folder())
    assert subprocess.run(decode).returncode < 0
    pinned = {**os.environ, llama_build.USE_VARIABLE: found.use}
    assert subprocess.run(decode, env=pinned).returncode == 0, "as a worker does where nothing can be kept"


def test_what_two_processes_find_is_kept_of_both(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dies("buffers", monkeypatch)
    try_build({"model": model})
    known = verdict()
    monkeypatch.setattr(llama_build, "verdict", llama_build.Verdict)  # read before the other kept it
    dies("never", monkeypatch)
    found = try_build({"model": model, "slots": 2})
    assert (found.use, found.died_of) == (Use.PLAIN_BUFFERS, "SIGILL")
    assert set(known.decoded) < set(found.decoded)


def test_the_packaged_model_is_tried_once_wherever_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try_build({})
    (tmp_path / "results.csv").touch()
    assert llama_build.has_decoded({})


def test_a_name_that_gets_another_file_is_tried_anew(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    register, digest = Register(), digest_file(Path(model), "here")
    register.add(NamedModel("mine", digest))
    try_build({"model": "mine"})
    assert llama_build.has_decoded({"model": "mine"})
    register.add(NamedModel("mine", digest, added_at=1.0), replace=True)
    assert not llama_build.has_decoded({"model": "mine"})


def test_a_format_that_dies_says_nothing_of_the_others(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try_build({"model": model})
    dies("always", monkeypatch)
    llama_build.check_decodes({"model": model})
    with pytest.raises(BuildDies, match="SIGILL"):
        llama_build.check_decodes({"model": model, "kv_type": "f32"})
    assert verdict().use is Use.AS_BUILT


@pytest.mark.parametrize("when", ["always", "load"])
def test_a_portable_build_is_used_where_nothing_else_works(
    when: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(dying_llama.libraries(), llama_build.portable_folder(), symlinks=True)
    dies(when, monkeypatch)
    assert try_build({"model": model}).use is Use.PORTABLE
    decode = [sys.executable, "-m", llama_build.TRIAL, json.dumps({"model": model})]
    assert subprocess.run(decode).returncode == 0
    chosen = llama_build.variables()
    assert chosen[llama_build.LIBRARY_VARIABLE] == str(llama_build.portable_folder())
    with monkeypatch.context() as using:
        for name, value in chosen.items():
            using.setenv(name, value)
        assert verdict().use is Use.PORTABLE, "so says a process that uses it, too"
    shutil.rmtree(llama_build.portable_folder())
    assert verdict().use is Use.AS_BUILT


def test_a_model_that_cannot_be_loaded_is_no_fault_of_the_build(tmp_path: Path) -> None:
    away = {"model": str(tmp_path / "away.gguf")}
    assert try_build(away).use is Use.AS_BUILT
    assert not llama_build.has_decoded(away), "it is tried again when it is there"


def test_a_child_that_is_killed_from_outside_is_no_fault_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed.py"
    killed.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(llama_build, "TRIAL", "killed")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert try_build({}).use is Use.AS_BUILT
    assert not llama_build.has_decoded({})


def test_another_library_or_machine_is_tried_anew(
    model: str, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_build({"model": model})
    other = tmp_path / "other"
    shutil.copytree(stub, other, symlinks=True)
    os.utime(other / "libllama.so", (0, 0))
    monkeypatch.setenv(llama_build.LIBRARY_VARIABLE, str(other))
    assert verdict().decoded == ()
    monkeypatch.setenv(llama_build.LIBRARY_VARIABLE, str(stub))
    assert verdict().decoded
    monkeypatch.setattr(llama_build, "processor", lambda: "another")
    assert verdict().decoded == ()


def test_what_cannot_be_kept_or_read_is_tried_again(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in the way").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "in the way"))
    assert try_build({"model": model}).decoded
    assert verdict().decoded == ()


def test_the_command_that_compiles_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    command = llama_build.rebuild()
    assert llama_build.CMAKE_INCLUDED.is_file()
    assert f"-DCMAKE_PROJECT_INCLUDE={llama_build.CMAKE_INCLUDED}" in command
    assert f"{sys.executable} -m pip install" in command
    assert command.endswith("--no-binary llama-cpp-python 'llama-cpp-python==0.3.36'")
    monkeypatch.setattr(llama_build.importlib.util, "find_spec", lambda _name: None)
    assert f"uv pip install --python {sys.executable} " in llama_build.rebuild()
