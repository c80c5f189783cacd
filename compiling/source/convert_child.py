"""The converting process: runs llama.cpp's script unchanged, once for each list of arguments.

`python -P convert_child.py SCRIPT JSON` exits when its standard input is closed, as when the parent ends. It
imports no module of this project: names of the converter's modules could clash with them.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from pathlib import Path


def _follow() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


def main() -> None:
    script, jobs = sys.argv[1], json.loads(sys.argv[2])
    threading.Thread(target=_follow, daemon=True).start()
    sys.path.insert(0, str(Path(script).parent))
    for arguments in jobs:
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
