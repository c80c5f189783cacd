"""Numbers of processes that have ended are given to others: those get no signal that was meant for the first.

In a namespace of its own a test may say which number comes next.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workers import CONTAINED, ROOT, can_contain

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_contain(), reason="needs namespaces of processes")]

BEGIN = """
import os, signal, subprocess, sys, time
from pathlib import Path
from cli.processes.folder_lock import FolderLock, holder
from cli.processes.supervisor import ChildSpec, Supervisor

folder = Path(sys.argv[1])
SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
HOLD = '''
import sys
from pathlib import Path
from cli.processes.folder_lock import FolderLock
FolderLock(Path(sys.argv[1]), "it").acquire()
print(flush=True)
sys.stdin.read()
'''

def another(number):
    "A process that gets this number, if it is free, and has a group of its own."
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
    return subprocess.Popen(SLEEP, process_group=0)
"""
DOWN = """
first = subprocess.Popen(
    [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
first.stdout.readline()
held = holder(folder)
first.communicate()
other = another(first.pid)
assert other.pid == first.pid == held.pid
held.send_signal(signal.SIGTERM)
held.close()
"""
SUPERVISED = """
others, first = [], []

def poll(supervisor):
    pid = supervisor.pids().get("one")
    if pid and not first:
        first.append(pid)
        os.kill(pid, signal.SIGKILL)
        while supervisor.pids():
            time.sleep(0.01)
        others.append(another(pid))  # before the supervisor comes to what has ended

supervisor = Supervisor([ChildSpec("one", SLEEP, folder / "log")], lambda _: None, on_poll=poll)
supervisor.start()
while not first or supervisor.pids().get("one") in (None, first[0]):
    time.sleep(0.01)
[other] = others
supervisor.hurry()
supervisor.stop()
"""
END = """
time.sleep(0.3)
assert other.poll() is None, f"the other process got signal {-other.returncode}"
"""


@pytest.mark.parametrize("code", [DOWN, SUPERVISED], ids=["down", "supervisor"])
def test_who_gets_a_number_next_gets_none_of_its_signals(tmp_path: Path, code: str) -> None:
    command = [*CONTAINED, sys.executable, "-c", BEGIN + code + END, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
