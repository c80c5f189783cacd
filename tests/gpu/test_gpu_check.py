"""The check of a GPU, on what every machine has: it tells what passed, what differs, and what was not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.llama.devices import devices
from tests.engine.helpers.drive import prompts, request
from tests.engine.helpers.tiny import write_tiny_gguf
from tests.gpu.__main__ import MARK, make_place, too_slow
from tests.gpu.items import ITEMS, Measure, Selection
from tests.gpu.measures.__main__ import MEASURES
from tests.gpu.measures.exact import compared
from tests.gpu.page import Result, page, place
from tests.gpu.recorder import DIFFERS, PASSED, SKIPPED, Outcome
from tests.gpu.running import run_process, run_selection
from tests.support.measuring.marks import put_between
from tests.support.workers import ROOT, is_alive, wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 120.0
TESTS = """
import os
import numpy as np
import pytest

def test_holds(): pass

def test_is_apart(): np.testing.assert_array_equal(np.array([1.0, 2.0]), np.array([1.0, 2.5]))

@pytest.mark.skip("no such device")
def test_has_no_place(): pass

def test_after_them(): {after}

def test_at_the_end(): pass
"""


def outcome_of(folder: Path, after: str, select: str = "") -> Result:
    file = folder / "test_some.py"
    file.write_text(TESTS.format(after=after), encoding="utf-8")
    return run_selection(Selection("some tests", (str(file),), select), LIMIT_S, folder / "outcomes")


def test_the_page_goes_into_a_new_file_or_into_its_place(tmp_path: Path) -> None:
    new, document, other = tmp_path / "page.md", tmp_path / "gpu.md", tmp_path / "other.md"
    document.write_text("before\n<!-- gpu -->\nold\n<!-- /gpu -->\nafter\n", encoding="utf-8")
    other.write_text("no place\n", encoding="utf-8")
    for path in (new, new, document):
        before = path.read_text(encoding="utf-8") if path.exists() else "<!-- gpu -->\n<!-- /gpu -->\n"
        make_place(path)
        assert path.read_text(encoding="utf-8") == before
        put_between(path, MARK, "made\n")
    assert new.read_text(encoding="utf-8") == "<!-- gpu -->\nmade\n<!-- /gpu -->\n"
    assert document.read_text(encoding="utf-8") == "before\n<!-- gpu -->\nmade\n<!-- /gpu -->\nafter\n"
    with pytest.raises(ValueError, match=r"other\.md: has no lines <!-- gpu -->"):
        make_place(other)
    with pytest.raises(FileNotFoundError):
        make_place(tmp_path / "none" / "page.md")


def test_what_passes_differs_and_is_skipped_is_told(tmp_path: Path) -> None:
    result = outcome_of(tmp_path, "pass")
    assert [(one.name.partition("::")[2], one.outcome) for one in result.outcomes] == [
        ("test_holds", PASSED),
        ("test_is_apart", DIFFERS),
        ("test_has_no_place", SKIPPED),
        ("test_after_them", PASSED),
        ("test_at_the_end", PASSED),
    ]
    assert result.summary == "3 passed; 1 differs; 1 skipped"
    apart, skipped = result.details
    assert apart.startswith("differs: `test_is_apart`: ")
    assert "Max absolute difference" in apart
    assert skipped == "skipped: `test_has_no_place`: no such device"
    assert result.differs


def test_a_selection_leaves_the_others_out(tmp_path: Path) -> None:
    result = outcome_of(tmp_path, "pass", select="holds or end")
    assert (result.summary, result.differs) == ("2 passed", False)


def test_a_process_that_dies_has_told_its_part(tmp_path: Path) -> None:
    result = outcome_of(tmp_path, "os.abort()")
    assert result.summary.startswith("1 passed; 2 differs; 1 skipped; not run: 2 tests: SIGABRT: ")
    assert "Extension modules" not in result.summary
    assert "(total: " not in result.summary
    assert result.outcomes[-1].name.startswith("after test_some.py::test_has_no_place")


HANGS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def test_a_process_that_takes_too_long_is_stopped_with_its_own_ones() -> None:
    ended = run_process(["-c", HANGS], limit_s=5.0)
    assert ended.code is None
    assert ended.seconds >= 5
    assert ended.why() == f"not within {ended.seconds:.0f} s"
    [child] = map(int, ended.lines)
    wait_until(lambda: not is_alive(child), 10.0)


def test_every_selection_selects_tests_that_exist() -> None:
    selections = [(i.paths, i.select) for i in ITEMS.values() if isinstance(i, Selection)]
    code = (
        "import pytest, sys\n"
        f"for paths, select in {selections!r}:\n"
        "    arguments = ['--collect-only', '-p', 'no:cacheprovider', *paths]\n"
        "    if pytest.main([*arguments, '-k', select] if select else arguments):\n"
        "        sys.exit(f'{paths} {select}')\n"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_every_measurement_has_a_function() -> None:
    assert MEASURES.keys() == {name for name, item in ITEMS.items() if isinstance(item, Measure)}


def test_which_results_are_the_same_is_measured(tmp_path: Path) -> None:
    """On a processor, batch-invariant ones to the bit; others are near: their batches have other shapes."""
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf")
    requests = [request(f"r{i}", text, logprobs=1) for i, text in enumerate(prompts(8))]
    on_processor = {"gpu_layers": 0, "kv_type": "f16"}
    exact = [*compared(tiny, {**on_processor, "batch_invariant": True}, requests)]
    near = [*compared(tiny, on_processor, requests)]
    assert len(exact) == len(near) == 7
    assert [line for line in exact if not line.endswith(": identical to the bit")] == []
    assert sum(line.endswith(" apart") for line in near) >= 2


def test_the_page_says_where_it_was_made_and_what_came_of_each_item() -> None:
    results = [
        Result("calls", [Outcome("a.py::test_a", PASSED), Outcome("a.py::test_b", DIFFERS, "1 | 2")]),
        Result("speed", lines=["device: 5 with 1"]),
        Result("large", not_run="too slow"),
    ]
    made = page(place(), results)
    assert "| calls | 1 passed; 1 differs |" in made
    assert "| speed | measured |" in made
    assert "| large | not run: too slow |" in made
    assert "- differs: `test_b`: 1 | 2" in made
    for name in ("device", "backend", "driver", "machine", "llama-cpp-python", "commit"):
        assert f"| {name} | " in made


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["device: tokens/s of requests together: 45.1 with 1, 300 with 16"], ""),
        (["device: tokens/s of requests together: 0.9 with 1, 3 with 16"], "0.9 tokens/s are too slow"),
        ([], "its speed is unknown"),
    ],
)
def test_the_packaged_model_is_run_where_it_is_fast_enough(lines: list[str], why: str) -> None:
    assert too_slow(Result("speed", lines=lines)) == why


@pytest.mark.skipif(bool(devices()), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_check() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "docs/how-to/gpu.md" in ended.stderr
