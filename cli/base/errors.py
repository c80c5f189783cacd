"""Errors of the command: each becomes one line on stderr and an exit code, never a traceback.

MedusaqError            exit 1   the gateway refused a request
├── GatewayUnreachable  exit 4   no gateway answers
└── CliError            exit 1   the command failed
    ├── BadInput            exit 2   the command line or the input file is wrong
    ├── ModelNotLoadable    exit 3   the model worker cannot load its model
    └── Interrupted         exit 130 (Ctrl-C) or 143 (SIGTERM)
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from common.disk_space import reason
from medusaq.errors import GatewayUnreachable, MedusaqError
from tables.base.errors import TableError

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_MODEL = 3  # also the exit code of the model worker itself
EXIT_UNREACHABLE = 4


class CliError(MedusaqError):
    """The command failed. The message is one line that says what to do."""

    exit_code = EXIT_FAILURE


class BadInput(CliError):
    """The command line or the input file is invalid."""

    exit_code = EXIT_BAD_INPUT


class ModelNotLoadable(CliError):
    """The model worker ended because its model cannot be loaded."""

    exit_code = EXIT_MODEL


class Interrupted(CliError):
    """A signal asked the command to stop."""

    def __init__(self, message: str, signum: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


def exit_code_of(error: MedusaqError) -> int:
    """Also of errors of the client, which know no exit codes."""
    if isinstance(error, GatewayUnreachable):
        return EXIT_UNREACHABLE
    return error.exit_code if isinstance(error, CliError) else EXIT_FAILURE


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError, such as a full disk, into a CliError that names the file."""
    try:
        yield
    except OSError as error:
        raise CliError(f"cannot write {path}: {reason(error)}") from None


@contextlib.contextmanager
def table_errors() -> Iterator[None]:
    """Convert what is wrong with a table, a template or a schema into BadInput."""
    try:
        yield
    except TableError as error:
        raise BadInput(str(error)) from None
