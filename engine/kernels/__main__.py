"""Makes the library, or says why it cannot be made."""

from __future__ import annotations

import sys

from engine.kernels.build import KernelsMissing, library


def main() -> int:
    try:
        print(library())
    except KernelsMissing as error:
        print(f"llama.cpp's own kernels are used: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
