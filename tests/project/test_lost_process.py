"""A run of tests that loses one of its processes ends soon, and says which and how."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.forking import lost_process
from tests.support.workers import ROOT

FILES, LATE = 60, 45  # the number of one that comes when a process has many behind it
QUICK = """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    pass
"""
# A fork without exec has all that its parent has open.
ENDS = {
    "SIGKILL, and a fork holds its pipe": "if not os.fork(): time.sleep(50)\n    os.kill(os.getpid(), 9)",
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "SIGABRT": "os.abort()",
    "exit code 3": "os._exit(3)",
}
FAULTS = ("SIGSEGV", "SIGABRT")


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """The tests there, by two processes."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ["-p", "xdist", "-p", lost_process.__name__, "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, f"--basetemp={folder / 'temp'}", "-n", "2"]
    command += ["--dist", "loadfile", "--no-loadscope-reorder"]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_it_ends_within_a_minute_and_says_what_ended(tmp_path: Path, end: str) -> None:
    for number in range(FILES):
        (tmp_path / f"test_{number:02}.py").write_text(QUICK)
    lost = tmp_path / f"test_{LATE}.py"
    lost.write_text(f"import os, time\n\ndef test_it():\n    open('lost', 'w').close()\n    {ENDS[end]}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = run(tmp_path)
    assert time.time() - (tmp_path / "lost").stat().st_mtime < 60
    assert done.returncode == 1
    how = end.split(",")[0]
    said = (
        rf"gw\d of the test processes (was ended by|ended with) {how}, at {lost.name}::test_it: the run ends"
    )
    assert re.search(said, done.stdout), done.stdout
    if how in FAULTS:
        assert f'"{lost}", line 5 in test_it' in done.stdout, "its stacks"
