"""Measuring a file in a process of its own: what it says, and how such a process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compiling.base.errors import CompileError, RoomError
from compiling.measure.bulk_prompts import OUTPUT, PROMPTS
from compiling.measure.child import ask
from compiling.measure.speed import ROWS, SLOTS, Speed, peak_bytes, run
from engine import EngineConfig
from tests.engine.helpers.drive import opened
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.support.workers import ROOT, is_alive, wait_until


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `odd` for children to run, yet to be written."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    return tmp_path / "odd.py"


def test_every_figure_is_measured(tiny: str) -> None:
    heard: list[float] = []
    found = ask("compiling.measure.speed", [tiny, "--threads", "1"], heard.append)
    speed = Speed.of(found)
    assert tuple(speed.row_s) == ROWS
    assert min(speed.load_s, speed.prefill_per_s, speed.bulk_per_s, *speed.row_s.values()) > 0
    assert speed.alone_per_s == pytest.approx(1 / speed.row_s[1])
    assert speed.peak_bytes > Path(tiny).stat().st_size
    assert Speed.of(json.loads(json.dumps(speed.json()))) == speed
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


@pytest.mark.slow
def test_the_peak_is_of_the_process_itself() -> None:
    ballast = np.ones(2**26)  # half a gigabyte
    code = "from compiling.measure.speed import peak_bytes; print(peak_bytes())"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 10_000_000 < int(said.stdout) < ballast.nbytes < peak_bytes()


def test_bulk_runs_every_prompt_to_its_full_length(tiny: str) -> None:
    assert len(PROMPTS) == SLOTS
    engine = opened(EngineConfig(model=tiny, slots=SLOTS, threads=1, speculation=False))
    ended = run(engine, PROMPTS, OUTPUT)
    assert sorted(int(one.request_id) for one in ended) == list(range(SLOTS))
    assert {one.completion_tokens for one in ended} == {OUTPUT}


# How children end


def test_what_is_wrong_with_the_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"none\.gguf: no such file$"):
        ask("compiling.measure.speed", [str(tmp_path / "none.gguf")], lambda _: None)


def test_a_child_that_the_system_kills(module: Path) -> None:
    module.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(RoomError, match=r"measuring model\.gguf was killed by the system: too little memory"):
        ask("odd", ["model.gguf"], lambda _: None)


def test_a_child_with_a_fault_of_its_own(module: Path) -> None:
    module.write_text("raise RuntimeError('the cause')")
    with pytest.raises(CompileError, match=r"measuring model\.gguf failed: RuntimeError: the cause"):
        ask("odd", ["model.gguf"], lambda _: None)
    module.write_text("import os; os._exit(7)")
    with pytest.raises(CompileError, match="exit code 7"):
        ask("odd", ["model.gguf"], lambda _: None)


WAITS = """
import os, time
from compiling.measure import child
def work(note):
    open("pid", "w").write(str(os.getpid()))
    note(0.5)
    time.sleep(600)
child.answer(work, child.parser(None).parse_args().follow)
"""


def test_a_child_ends_with_the_process_that_asked(module: Path) -> None:
    module.write_text(WAITS)
    asks = "ask('odd', ['model.gguf'], lambda share: print(share, flush=True))"
    code = f"from compiling.measure.child import ask; {asks}"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=module.parent, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "0.5\n"
    child = int((module.parent / "pid").read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_alive(child))
