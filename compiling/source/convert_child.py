"""The process that converts: llama.cpp's script, run as it is, for one list of arguments after the other.

`python -P convert_child.py SCRIPT JSON`: it ends with the process that holds the other end of its standard
input. Nothing of ours is imported: the converter's modules must be the only ones of their names.
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
