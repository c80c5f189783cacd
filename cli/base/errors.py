"""Errors of the command: each becomes one line on stderr and an exit code, never a traceback.

CliError                exit 1   the command failed
├── BadInput            exit 2   the command line or the input file is wrong
├── ModelNotLoadable    exit 3   the model worker cannot load its model
├── GatewayUnreachable  exit 4   no gateway answers
└── Interrupted         exit 130 (Ctrl-C) or 143 (SIGTERM)
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from tables.base.errors import TableError

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_MODEL = 3  # also the exit code of the model worker itself
EXIT_UNREACHABLE = 4


class CliError(Exception):
    """The command failed. The message is one line that says what to do."""

    exit_code = EXIT_FAILURE


class BadInput(CliError):
    """The command line or the input file is invalid."""

    exit_code = EXIT_BAD_INPUT


class ModelNotLoadable(CliError):
    """The model worker ended because its model cannot be loaded."""

    exit_code = EXIT_MODEL


class GatewayUnreachable(CliError):
    """No gateway answered at the address within the command's timeout."""

    exit_code = EXIT_UNREACHABLE


class Interrupted(CliError):
    """A signal asked the command to stop."""

    def __init__(self, message: str, signum: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError, such as a full disk, into a CliError that names the file."""
    try:
        yield
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def table_errors() -> Iterator[None]:
    """Convert what is wrong with a table, a template or a schema into BadInput."""
    try:
        yield
    except TableError as error:
        raise BadInput(str(error)) from None
