"""Starts a service with other constants than its own: short times and small limits are for tests alone.

    TEST_CONSTANTS='{"api.requests.open_requests.MOST_OPEN": 2}' python -m tests.support.tuned gateway

What it starts in turn is not changed.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from fastapi import FastAPI

VARIABLE = "TEST_CONSTANTS"


def constants(values: Mapping[str, object]) -> dict[str, str]:
    """The variable for a process. values: by module and name; of a dataclass the fields that change."""
    return {VARIABLE: json.dumps(values)}


def tune() -> None:
    """Before anything else of the service is imported. Raises AttributeError for a constant that is none."""
    for place, value in json.loads(os.environ.get(VARIABLE, "{}")).items():
        module, _, name = place.rpartition(".")
        home = importlib.import_module(module)
        known: Any = getattr(home, name)
        setattr(home, name, replace(known, **value) if is_dataclass(known) else value)


def create_app() -> FastAPI:
    tune()
    from api.app import create_app as create

    return create()


if __name__ == "__main__":
    tune()
    from cli.main import main

    main()
