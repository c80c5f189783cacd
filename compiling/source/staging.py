"""Makes the folder that the converter reads: links to the checkpoint's files, without executable code.

The converter loads tokenizers with trust_remote_code: transformers then runs modules that `auto_map` names.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from compiling.base.errors import SourceError

NAMES_CODE = ("auto_map", "custom_generate", "custom_pipelines")
CODE = (".py", ".pyc", ".so")


def stage(checkpoint: Path, staging: Path, *, leave_out: Collection[str] = ()) -> None:
    """Link the folder's files, without subfolders. leave_out: endings of file names. Raises SourceError."""
    staging.mkdir(parents=True)
    for path in checkpoint.iterdir():
        if not path.is_file() or path.name.endswith((*CODE, *leave_out)):
            continue
        if path.name.endswith("config.json"):
            _copy_settings(path, staging / path.name)
        else:
            (staging / path.name).symlink_to(path.resolve())


def _copy_settings(path: Path, target: Path) -> None:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    target.write_text(json.dumps(_without_code(settings)), encoding="utf-8")


def _without_code(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_code(one) for key, one in value.items() if key not in NAMES_CODE}
    return [_without_code(one) for one in value] if isinstance(value, list) else value
