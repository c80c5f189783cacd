"""The end of a start, in a process of its own: what it exempts from garbage collection stays so."""

from __future__ import annotations

import os
import subprocess
import sys

from tasks.base.readiness import READY_FD
from tests.support.workers import ROOT

START = """
import gc, weakref
from tasks.base.readiness import tell_ready
class Node: pass
loaded, node = [[]], Node()
node.itself, garbage = node, weakref.ref(node)
gc.disable()
del node
tell_ready()
print(any(each is loaded for each in gc.get_objects()), gc.get_freeze_count() > 1000, garbage())
"""


def test_what_a_start_has_loaded_is_walked_by_no_later_collection() -> None:
    """Except for its garbage, which would be kept for ever."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as told:
        done = subprocess.run(
            [sys.executable, "-c", START],
            cwd=ROOT,
            env={**os.environ, READY_FD: str(writer)},
            pass_fds=[writer],
            capture_output=True,
            text=True,
            check=True,
        )
        os.close(writer)
        assert told.read() == b"1"
    assert done.stdout.split() == ["False", "True", "None"]
