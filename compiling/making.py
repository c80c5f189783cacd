"""One GGUF in another number format, in a process of its own, which can be ended at any moment.

python -m compiling.making FILE TARGET TYPE [--threads N]
"""

from __future__ import annotations

from compiling import child
from engine.quantise import FORMATS, requantise


def main() -> None:
    parser = child.parser(__doc__)
    parser.add_argument("target", help="the GGUF to write")
    parser.add_argument("type", choices=FORMATS)
    options = parser.parse_args()

    def work(note: child.Note) -> str:
        requantise(options.file, options.target, options.type, options.threads)
        note(1.0)
        return str(options.target)

    child.answer(work, options.follow)


if __name__ == "__main__":
    main()
