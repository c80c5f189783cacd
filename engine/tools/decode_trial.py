"""The child process that tries whether llama.cpp decodes here: `python -m engine.tools.decode_trial CONFIG`.

A signal that ends it is its result; see common/llama_build.py. CONFIG: fields of an EngineConfig as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from engine.base.config import EngineConfig
from engine.base.errors import EngineError
from engine.tools.model_registry import Register
from engine.weights.format_selection import calls_of, open_at_once


def main() -> int:
    """Decode one row, a row for each slot, and a prompt. 1 if the model cannot be loaded."""
    config = EngineConfig(**json.loads(sys.argv[1]))
    try:
        model, _ = open_at_once(replace(config, model=Register().resolve(config.model).path))
        for call in calls_of(model, config):
            call()
    except EngineError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
