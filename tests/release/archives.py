"""Builds the source archive, and the wheel from it, with the locked build tools."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.workers import ROOT

BUILD_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Archives:
    source: Path
    wheel: Path


def sources(root: Path = ROOT) -> list[str]:
    """The files of the repository: what git has, and what is new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return sorted(name for name in done.stdout.split("\0") if name and (root / name).is_file())


def build(folder: Path, root: Path = ROOT) -> Archives:
    """Both archives, in the folder. From a copy: folders of earlier builds would be built in as well."""
    copy, out = folder / "copy", folder / "dist"
    for name in sources(root):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, copy / name)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"the build failed:\n{done.stdout[-4000:]}")
    shutil.rmtree(copy)
    [source], [wheel] = out.glob("*.tar.gz"), out.glob("*.whl")
    return Archives(source, wheel)
