"""What the checks share. They run in the clients' environment, which has nothing of this project."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable

from pydantic import BaseModel, Field

URL, MODEL = os.environ["CLIENTS_URL"], os.environ["CLIENTS_MODEL"]
KEY = "none"
QUESTION = "Anna is 42 years old and lives in Rome. Who is it about?"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def run(cases: dict[str, Callable[[], object]]) -> None:
    """Print a line of JSON for each case: its name, and its error, or null."""
    for name, case in cases.items():
        try:
            case()
            error = None
        except Exception as failure:
            traceback.print_exc(file=sys.stderr)
            error = f"{type(failure).__name__}: {failure}"[:300]
        print(json.dumps({"case": name, "error": error}), flush=True)


def is_person(value: object) -> None:
    assert isinstance(value, Person), value
