"""The runtime format for this machine: measured, recommended, and kept for workers to load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from common.llama_build import cache_folder
from compiling.base.progress import Progress
from compiling.base.state import digest
from compiling.result.compilation import Compiled, Options
from compiling.run import compile_model
from compiling.source.hub import looks_like_a_name
from engine.weights.saved_format import SavedFormat, save_format


def own_folder(source: str) -> Path:
    """The default folder of a model's files and measurements."""
    path = Path(source)
    of_hub = looks_like_a_name(source) and not path.exists()
    return cache_folder() / f"compiled-{digest(source if of_hub else str(path.resolve()))}"


def choose(options: Options, progress: Progress) -> Compiled:
    """Measure, and save the recommended format as the model's format on this machine.

    In the default folder only the recommended file stays. Raises CompileError or EngineError.
    """
    if options.folder == own_folder(options.source):
        options = replace(options, keep=False)
    compiled = compile_model(options, progress)
    best = compiled.recommended
    file = None if best is compiled.rows[0] else str(Path(best.path).resolve())
    save_format(
        compiled.source.path,
        SavedFormat(best.type, file, options.load.value, options.max_kl, compiled.recommendation.reason),
    )
    return compiled
