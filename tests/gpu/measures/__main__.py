"""Runs one measurement, and prints each line when it is known: `python -m tests.gpu.measures NAME`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.gpu.items import MEASURED
from tests.gpu.measures import curve, exact, memory, speed, workers

MEASURES = {
    "speed": speed.measure,
    "exact": exact.of_the_tiny_model,
    "exact-packaged": exact.of_the_packaged_model,
    "curve": curve.measure,
    "workers": workers.measure,
    "memory": memory.measure,
}


def main() -> int:
    [name] = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for line in MEASURES[name](Path(folder)):
            print(f"{MEASURED}{line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
