"""Real Celery worker processes for tests, with the scripted engine unless another is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import SecretStr

from common.llama_build import KERNELS_VARIABLE
from tasks.base.queue_names import IO_QUEUE, QUEUES
from tasks.base.setting_names import ENV_PREFIX
from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry
from tests.support.forking.forks import ROOT, Process, start

SCRIPTED = "tests.support.scripted:load"
START_TIMEOUT_S = 60.0
WAIT_S = 120.0  # other tests compute meanwhile: only what never comes takes so long
BE_WORKER = """import sys; from tests.support.tuned import tune; tune()
from cli.stack.services import celery_worker; celery_worker(*sys.argv[1:])"""
WORKER = [sys.executable, "-c", BE_WORKER, "-P", "threads", "-l", "INFO"]
QUIET = ["--without-mingle", "--without-gossip"]  # nothing here needs to hear of other workers
# As in a container: each start has the same host name and process id. Its end kills what is in it.
CONTAINED = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
CONTAINED_HOST = "contained"
SET_HOST = ["sh", "-c", f'hostname {CONTAINED_HOST} && exec "$0" "$@"']


class Worker:
    """One process and its log file. id: as a model worker has it in the records of its jobs."""

    def __init__(self, process: Process, log: Path, contained: bool = False) -> None:
        self.process = process
        self.log = log
        self.id = f"{CONTAINED_HOST}:1" if contained else f"{socket.gethostname()}:{process.pid}"

    def terminate(self, timeout_s: float = 15.0) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Workers:
    """Starts workers of a test and ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: list[Worker] = []

    def model(
        self,
        settings: Settings,
        ready: bool = True,
        engine: str = SCRIPTED,
        env: Mapping[str, str] | None = None,
        contained: bool = False,
    ) -> Worker:
        """A model worker; with ready, waits until it is in the registry.

        contained: with the host name, process id and node name of every other one that is.
        """
        command = [*WORKER, *QUIET, "-I", "tasks.generate", "-Q", ",".join(QUEUES.values())]
        settings = settings.model_copy(update={"engine_factory": engine})
        name = "worker-1" if contained else f"model{len(self.all)}"
        worker = self._start([*command, "-n", f"{name}@%h"], settings, env or {}, contained)
        if ready:
            self._wait_registered(settings, worker)
        return worker

    def io(
        self,
        settings: Settings,
        env: Mapping[str, str] | None = None,
        contained: bool = False,
        before: Sequence[str] = (),
    ) -> Worker:
        """before: a command that becomes the worker."""
        command = [*before, *WORKER, *QUIET, "-c", "4", "-I", "tasks.io", "-Q", IO_QUEUE]
        name = "io-1" if contained else f"io{len(self.all)}"
        return self._start([*command, "-n", f"{name}@%h"], settings, env or {}, contained)

    def gateway(self, settings: Settings, env: Mapping[str, str] | None = None) -> Worker:
        """As `medusaq gateway`; it answers some time later."""
        return self._start([sys.executable, "-m", "tests.support.tuned", "gateway"], settings, env or {})

    def close(self) -> None:
        for worker in self.all:
            if worker.process.poll() is None:
                worker.kill()

    def _start(
        self, command: list[str], settings: Settings, env: Mapping[str, str], contained: bool = False
    ) -> Worker:
        if contained:
            command = [*CONTAINED, *SET_HOST, *command]
        log = self._folder / f"worker{len(self.all)}.log"
        with log.open("wb") as out:
            variables = {**environment(settings), **env}
            process = start(command, ROOT, variables, stdout=out, stderr=subprocess.STDOUT)
        worker = Worker(process, log, contained)
        self.all.append(worker)
        return worker

    def _wait_registered(self, settings: Settings, worker: Worker) -> None:
        store = JobStore(settings)
        registry = Registry(store.db, settings.worker_ttl_s)
        try:
            wait_until(
                lambda: any(info.id == worker.id for info in registry.live()),
                START_TIMEOUT_S,
                alive=lambda: worker.process.poll() is None,
                report=worker.text,
            )
        finally:
            store.close()


def can_contain() -> bool:
    """Whether this process may start others in namespaces of their own."""
    if shutil.which(CONTAINED[0]) is None:
        return False
    return subprocess.run([*CONTAINED, *SET_HOST, "true"], capture_output=True, check=False).returncode == 0


def _secrets(settings: Settings) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in settings if isinstance(value, SecretStr)}


def environment(settings: Settings) -> dict[str, str]:
    """The process environment that gives a child these settings."""
    chosen = {
        ENV_PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value)
        for name, value in (settings.model_dump(mode="json") | _secrets(settings)).items()
        if value is not None
    }
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ENV_PREFIX) or name == KERNELS_VARIABLE
    }
    return inherited | chosen | {"PYTHONPATH": str(ROOT)}


def is_alive(pid: int) -> bool:
    """Zombies are dead enough: they are for their parent to bury."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(
    holds: Callable[[], bool],
    timeout_s: float = WAIT_S,
    alive: Callable[[], bool] = lambda: True,
    report: Callable[[], str] = lambda: "",
) -> None:
    """Poll until it holds; fails the test after timeout_s or when not alive, with the report."""
    give_up = time.monotonic() + timeout_s
    while not holds():
        assert alive(), f"the process ended early:\n{report()}"
        assert time.monotonic() < give_up, f"not within {timeout_s} s\n{report()}"
        time.sleep(0.02)
