"""The container files as they are parsed: services of Compose, stages of the Dockerfile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
CUDA_COMPOSE = yaml.safe_load((ROOT / "docker-compose.cuda.yml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MONITORING = {name: service for name, service in SERVICES.items() if "profiles" in service}
OURS = {name: service for name, service in SERVICES.items() if name not in ("redis", *MONITORING)}
STAGES = {
    stage["name"]: stage
    for stage in (
        match.groupdict()
        for match in re.finditer(
            r"^FROM (?P<base>\S+) AS (?P<name>\S+)\n(?P<lines>(?:(?!FROM ).*\n?)*)", DOCKERFILE, re.MULTILINE
        )
    )
}


def chain(stage: str) -> str:
    """The lines of a stage and of every stage that it stands on or copies from."""
    own = STAGES[stage]
    below = [own["base"], *re.findall(r"--from=(\S+)", own["lines"])]
    return own["lines"] + "".join(chain(name) for name in below if name in STAGES)


def seconds(duration: str) -> int:
    assert duration.endswith("s"), duration
    return int(duration.removesuffix("s"))


def check(name: str) -> dict[str, Any]:
    """The check of a service as Compose or its image has it: test, and its times as text."""
    if own := OURS[name].get("healthcheck"):
        return dict(own)
    lines = STAGES[OURS[name]["build"]["target"]]["lines"]
    [(options, test)] = re.findall(r"^HEALTHCHECK (.*?) CMD (.*)$", lines, re.MULTILINE)
    named = dict(option.removeprefix("--").split("=") for option in options.split())
    return {"test": test, **{option.replace("-", "_"): value for option, value in named.items()}}
