"""Output files: checked before the work begins, and written at its end."""

from __future__ import annotations

import errno
from pathlib import Path

from cli.base.errors import BadInput, writing
from common.atomic_write import atomic_path


def check_writable(option: str, path: Path) -> None:
    """Raise BadInput, which names the option, if the file could not be written."""
    try:
        if path.is_dir():
            raise BadInput(f"{option}: {path} is a folder")
        if not path.parent.is_dir():
            raise BadInput(f"{option}: the folder {path.parent} does not exist")
    except OSError as error:  # for example a file name that is too long
        raise BadInput(f"{option}: cannot write {path}: {error.strerror}") from None


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
