"""Environments with packages that are not to be among those of the project."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path


class CannotInstall(Exception):
    """An installer failed; what it printed says why."""


def install(folder: Path, requirements: Path) -> Path:
    """Make the environment, unless it has these requirements; return its Python. Raises CannotInstall."""
    python = folder / "bin" / "python"
    made = folder / "requirements.txt"
    if not made.exists() or made.read_text() != requirements.read_text():
        try:
            venv.create(folder, with_pip=True, clear=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CannotInstall(f"{folder} cannot be made: {error}") from error
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, "-r", str(requirements)]).returncode:
            raise CannotInstall(f"pip did not install the packages of {requirements}")
        made.write_text(requirements.read_text())
    return python
