"""Output files: checked before the work begins, and written at its end."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from cli.base.errors import BadInput, writing
from common.atomic_write import atomic_path

STDIN = "-"


def check_writable(option: str, path: Path, reads: Iterable[str | Path | None] = ()) -> None:
    """Raise BadInput, which names the option, if the file could not be written, or as check_not_read()."""
    try:
        if path.is_dir():
            raise BadInput(f"{option}: {path} is a folder")
        if not path.parent.is_dir():
            raise BadInput(f"{option}: the folder {path.parent} does not exist")
    except OSError as error:  # for example a file name that is too long
        raise BadInput(f"{option}: cannot write {path}: {error.strerror}") from None
    check_not_read(option, path, reads)


def check_not_read(option: str, path: Path, reads: Iterable[str | Path | None]) -> None:
    """Raise BadInput if the file to write is among those that the command uses, under any name."""
    for name in reads:
        if name is not None and _is_same(path, name):
            known = "standard input" if name == STDIN else name
            other = "" if str(name) == str(path) else f" as {known}"
            raise BadInput(f"{option}: {path} is in use{other}: name another file to write")


def _is_same(path: Path, name: str | Path) -> bool:
    """Whether both lead to one file, also through links; the files need not exist. Devices may be both."""
    try:
        if path.exists() and not path.is_file():
            return False
        if name == STDIN:
            return os.path.samestat(path.stat(), os.fstat(sys.stdin.fileno()))
        return path.resolve() == Path(name).resolve() or path.samefile(name)
    except (OSError, ValueError):  # one does not exist, or is none, as a name on the hub
        return False


def write(path: Path, content: bytes) -> None:
    """Write a file atomically. Links, devices and files in read-only folders are written in place.

    Raises CliError.
    """
    with writing(path):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(content)
            return
        try:
            with atomic_path(path, durable=False) as part:
                part.write_bytes(content)
                if path.exists():
                    part.chmod(path.stat().st_mode)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EBUSY):
                raise
            path.write_bytes(content)
