"""Measurements in the process of a test, and short ones in processes of their own.

    TEST_CONSTANTS=... python -m tests.compiling.helpers.measuring FILE [--threads N]

is compiling.measure.speed with other constants.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

from compiling.base.errors import CompileError
from compiling.measure import child
from engine import EngineError
from tests.support.tuned import tune


def inside(module: str, arguments: list[str], note: child.Note) -> Any:
    """As child.ask(): the module's own main(), without the seconds that a process takes to start."""
    found: list[Any] = []

    def answer(work: Callable[[child.Note], Any], follow: bool) -> None:
        assert not follow
        found.append(work(note))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *arguments])
        patch.setattr(child, "answer", answer)
        try:
            importlib.import_module(module).main()
        except EngineError as error:
            raise CompileError(error.message) from None
    return found[0]


if __name__ == "__main__":
    tune()
    from compiling.measure.speed import main

    main()
