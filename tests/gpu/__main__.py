"""Tries on this machine's GPU what the engine does with one, and ends with a page of results to send back.

    python -m tests.gpu [--only calls exact ...] [--limit SECONDS] [--large] [--write FILE] [--without-gpu]

Most items of the packaged model are left out on a device that is too slow for them, unless --large or --only
asks for them.
--write puts the page into a file; where there is one, between its lines `<!-- gpu -->` and `<!-- /gpu -->`.
Exit code 1 when a test differs or a process died.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from engine.llama.devices import devices
from tests.gpu.items import ITEMS, SPEED
from tests.gpu.page import Result, page, place
from tests.gpu.running import run
from tests.support.measuring.marks import around, put_between

MARK = "gpu"  # of the place in a document
LIMIT_S = 900.0  # for each item
SLOW = 10.0  # tokens/s of a request alone, below which items of the packaged model take hours


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", choices=ITEMS, metavar="ITEM", help=", ".join(ITEMS))
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each item")
    parser.add_argument("--large", action="store_true", help="the packaged model, however slow it is")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a new file, or one with a place for it")
    parser.add_argument("--without-gpu", action="store_true", help="try the processor in place of a GPU")
    options = parser.parse_args()
    if options.write is not None:
        try:
            make_place(options.write)
        except (OSError, ValueError) as error:
            parser.error(f"--write: {error}")
    return options


def make_place(path: Path) -> None:
    """Before hours of tests. Raises OSError, and ValueError for a document without a place for the page."""
    if path.exists():
        around(path, MARK)
    else:
        path.write_text(f"<!-- {MARK} -->\n<!-- /{MARK} -->\n", encoding="utf-8")


def too_slow(measured: Result) -> str:
    """Why the packaged model is too slow here; empty if it is not. measured: tokens/s."""
    found = re.search(r"device: .*?([\d.e+-]+) with 1\b", "\n".join(measured.lines))
    if found and float(found[1]) >= SLOW:
        return ""
    return f"{found[1]} tokens/s are too slow" if found else "its speed is unknown"


def main() -> int:
    options = parse()
    if not devices() and not options.without_gpu:
        print("llama.cpp was compiled without a GPU, or finds none: docs/how-to/gpu.md", file=sys.stderr)
        return 2
    results: dict[str, Result] = {}
    for name in options.only or ITEMS:
        item = ITEMS[name]
        if item.large and not (options.large or options.only) and (slow := too_slow(results[SPEED])):
            results[name] = Result(item.what, not_run=f"{slow}; --large runs it")
            continue
        print(f"{name}: {item.what} ...", end=" ", file=sys.stderr, flush=True)
        results[name] = result = run(name, item, options.limit)
        print(f"{result.summary} ({result.seconds:.0f} s)", file=sys.stderr, flush=True)
    made = page(place(), results.values())
    print(made)
    if options.write is not None:
        put_between(options.write, MARK, made)
    return int(any(result.differs for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
