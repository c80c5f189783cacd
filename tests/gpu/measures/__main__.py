"""Runs one measurement, and prints each line when it is known: `python -m tests.gpu.measures NAME`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.gpu.items import MEASURED
from tests.gpu.measures import curve, exact, memory, speed, workers

MEASURES: dict[str, Callable[[Path], Iterator[str]]] = {
    "speed": speed.measure,
    "exact-f32": partial(exact.of_the_tiny_model, {}),
    "exact-f16": partial(exact.of_the_tiny_model, {"kv_type": "f16"}),
    "exact-invariant": partial(exact.of_the_tiny_model, {"kv_type": "f16", "batch_invariant": True}),
    "exact-packaged": partial(exact.of_the_packaged_model, {}),
    "exact-packaged-invariant": partial(exact.of_the_packaged_model, {"batch_invariant": True}),
    "curve": curve.measure,
    "workers": workers.measure,
    "memory": memory.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Runs one measurement, and prints each line when it is known."
    )
    parser.add_argument("name", choices=MEASURES)
    name = parser.parse_args().name
    with tempfile.TemporaryDirectory() as folder:
        for line in MEASURES[name](Path(folder)):
            print(f"{MEASURED}{line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
