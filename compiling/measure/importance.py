"""Computes the importance matrix of a text in its own process, since that loads the source's model.

python -m compiling.measure.importance FILE --text TEXT --target NPZ [--threads N]
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common.atomic_write import atomic_file
from compiling.measure import child
from engine.weights.importance_matrix import importance_of


def main() -> None:
    parser = child.parser(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="what the model is to be good at")
    parser.add_argument("--target", type=Path, required=True, help="the file to write")
    options = parser.parse_args()

    def work(note: child.Note) -> int:
        found = importance_of(
            options.file,
            options.text,
            threads=options.threads,
            progress=lambda done, of: note(done / of),
        )
        with atomic_file(options.target, durable=True) as file:
            np.savez(file, allow_pickle=False, **found)
        return len(found)

    child.answer(work, options.follow)


if __name__ == "__main__":
    main()
