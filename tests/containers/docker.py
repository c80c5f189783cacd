"""Docker's own commands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

TAIL = 25  # lines of a command that failed
OURS = "medusaq-check"  # the project of Compose, and what all images that are made here begin with


class DockerFailed(Exception):
    """A command, and the end of what it wrote."""


def docker(
    *arguments: str,
    text: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """What `docker ARGUMENTS` prints. text: its input. env: all of it. Raises DockerFailed."""
    command = ["docker", *arguments]
    try:
        done = subprocess.run(
            command,
            input=text,
            env=env,
            timeout=timeout_s,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        raise DockerFailed("docker is not installed") from None
    except subprocess.TimeoutExpired:
        raise DockerFailed(f"{' '.join(command)}: no end within {timeout_s:g} s") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-TAIL:]
        raise DockerFailed("\n  ".join([f"{' '.join(command)} ended with {done.returncode}", *lines]))
    return done.stdout


def inspect(*names: str) -> list[dict[str, Any]]:
    """What Docker knows of containers or images. Raises DockerFailed where there is none."""
    found: list[dict[str, Any]] = json.loads(docker("inspect", *names)) if names else []
    return found


def has_image(name: str) -> bool:
    try:
        docker("image", "inspect", name)
    except DockerFailed:
        return False
    return True
