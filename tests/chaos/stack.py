"""The whole system as processes on loopback, each started again when it ends, as a supervisor would."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx

from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tests.chaos.faults.clock import Clock, compiled
from tests.chaos.faults.disk import small_disk
from tests.chaos.faults.proxy import Proxy
from tests.support.peers.receivers import LOOPBACK
from tests.support.scripted import MODEL_NAME
from tests.support.servers import RedisServer, free_port
from tests.support.workers import SCRIPTED, Worker, Workers, wait_until

REDIS, GATEWAY, IO = "redis", "gateway", "io"
MODELS = 2
OTHER = "other"  # the worker of a second model, and that model's name
LOOK_S = 0.05
TAIL = 15  # lines
READY_S = 60.0
STOP_S = 60.0  # above any drain time: the processes end by themselves


@dataclass(frozen=True, slots=True)
class Needs:
    """proxied: all but this process reach Redis through a proxy. disk: the file store is on a small one, if
    that can be had; redis_disk: so are the files of Redis, on another. clocks: each process has a clock of
    its own, if there is a C compiler.
    """

    proxied: bool = False
    disk: bool = False
    redis_disk: bool = False
    clocks: bool = False


NOTHING = Needs()


@dataclass
class Service:
    """One process of the stack; held: it is not started again."""

    start: Callable[[Settings, Mapping[str, str]], Worker]
    settings: Settings
    env: Mapping[str, str] = field(default_factory=dict)
    held: bool = False
    worker: Worker | None = None
    starts: int = 0


class Stack:
    """Use as a context. Model workers are model0, model1, ...; the engine is scripted, the rest real.

    With lanes there is one worker of a second model besides, and what names none is for the first.
    """

    def __init__(
        self,
        folder: Path,
        needs: Needs = NOTHING,
        models: int = MODELS,
        lanes: bool = False,
        env: Mapping[str, str] | None = None,
        **chosen: object,
    ) -> None:
        """env: more variables of each process. chosen: settings."""
        self._more = dict(env or {})
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.disk = small_disk(folder / "disk") if needs.disk else None
        self.redis_disk = small_disk(folder / "redis-disk") if needs.redis_disk else None
        self._clock = compiled(folder) if needs.clocks else None
        self.clocks: dict[str, Clock] = {}  # of Redis and of each service there is
        data = (self.redis_disk.folder if self.redis_disk else folder) / "redis"
        self.redis = RedisServer(data, env=self._env(REDIS))
        self.proxy = Proxy(self.redis.port)
        files = (self.disk.folder if self.disk else folder) / "files"
        # The receiver of webhooks is on this machine.
        values = {"files": str(files), "port": free_port(), "webhook_allow": LOOPBACK, **chosen}
        self.other = OTHER if lanes else None
        if lanes:
            values["default_model"] = MODEL_NAME
        direct = Settings(_env_file=None, redis_url=self.redis.url, **values)  # type: ignore[call-arg]
        through = {"redis_url": f"redis://127.0.0.1:{self.proxy.port}/0"} if needs.proxied else {}
        self.settings = direct.model_copy(update={"engine_factory": SCRIPTED, **through})
        self.store = JobStore(direct)
        self.url = f"http://127.0.0.1:{direct.port}"
        self._workers = Workers(folder)
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper")
        self.services: dict[str, Service] = {}
        self._models = models

    def __enter__(self) -> Stack:
        try:
            self.redis.start()
            self.add(GATEWAY, self._workers.gateway)
            self.add_io(IO)
            for number in range(self._models):
                self.add_model(f"model{number}")
            if self.other is not None:
                self.add_model(OTHER, env={"SCRIPTED_MODEL": self.other})
            self._keeper.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stopping.set()
        if self._keeper.is_alive():
            self._keeper.join()
        for service in self.services.values():
            if service.worker is not None:
                service.worker.process.send_signal(signal.SIGCONT)
        self._workers.close()
        self.store.close()
        self.proxy.close()
        self.redis.kill()
        for disk in (self.disk, self.redis_disk):
            if disk is not None:
                disk.close()

    # Processes

    def add_model(
        self,
        name: str,
        settings: Settings | None = None,
        env: Mapping[str, str] | None = None,
        contained: bool = False,
    ) -> None:
        def start(settings: Settings, env: Mapping[str, str]) -> Worker:
            engine = settings.engine_factory
            return self._workers.model(settings, ready=False, engine=engine, env=env, contained=contained)

        self.add(name, start, settings, env)

    def add_io(self, name: str) -> None:
        self.add(name, self._workers.io)

    def add(
        self,
        name: str,
        start: Callable[[Settings, Mapping[str, str]], Worker],
        settings: Settings | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        with self._lock:
            self.services[name] = Service(
                start, settings or self.settings, {**self._env(name), **(env or {})}
            )
            self.start(name)

    def start(self, name: str) -> None:
        with self._lock:
            service = self.services[name]
            service.held = False
            service.worker = service.start(service.settings, service.env)
            service.starts += 1

    def kill(self, name: str) -> None:
        """SIGKILL; it is started again at once."""
        self.worker(name).kill()

    def stop(self, name: str) -> int:
        """SIGTERM, and the exit code; it stays away until start()."""
        self.hold(name)
        return self.worker(name).terminate(STOP_S)

    def hold(self, name: str) -> None:
        """Once it ends, it stays away until start()."""
        with self._lock:
            self.services[name].held = True

    def remove(self, name: str) -> None:
        """Stop it for good."""
        self.stop(name)
        self._forget(name)

    def remove_killed(self, name: str) -> None:
        """Kill it for good."""
        self.hold(name)
        self.kill(name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            del self.services[name]
            self.clocks.pop(name, None)

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end."""
        process = self.worker(name).process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def worker(self, name: str) -> Worker:
        worker = self.services[name].worker
        assert worker is not None
        return worker

    def is_worker(self, name: str, worker_id: str) -> bool:
        return self.worker(name).id == worker_id

    @property
    def starts(self) -> dict[str, int]:
        """How often each process has been started."""
        with self._lock:
            return {name: service.starts for name, service in self.services.items()}

    @property
    def models(self) -> list[str]:
        """Workers of the first model."""
        return [name for name in self.services if name.startswith("model")]

    def wait_ready(self) -> None:
        """Until the gateway answers, an io worker leads and every model worker is known."""
        wait_until(self._is_ready, READY_S, report=self.tails)

    def tails(self) -> str:
        """The ends of the logs but for what is as always, for whoever must find out what happened."""
        with self._lock:
            workers = {name: service.worker for name, service in self.services.items() if service.worker}
        told = {
            name: [line for line in worker.text().splitlines() if "INFO" not in line]
            for name, worker in workers.items()
        }
        return "\n".join(f"--- {name}\n" + "\n".join(lines[-TAIL:]) for name, lines in told.items())

    def logs(self) -> str:
        """All that all processes have said so far."""
        return "".join(worker.text() for worker in self._workers.all)

    def _env(self, name: str) -> dict[str, str]:
        if self._clock is None:
            return self._more
        self.clocks[name] = Clock(self.folder / f"{name}.clock", self._clock)
        return {**self._more, **self.clocks[name].env}

    def _is_ready(self) -> bool:
        with self._lock:
            known = [*self.models, *([OTHER] if OTHER in self.services else [])]
            models = sum(not self.services[name].held for name in known)
        try:
            said = httpx.get(f"{self.url}/readyz", timeout=5).json()
        except httpx.HTTPError:
            return False
        return bool(said["redis"] and said["io_worker"] and said["workers"] >= models)

    def _keep(self) -> None:
        while not self._stopping.wait(LOOK_S):
            with self._lock:
                ended = [
                    name
                    for name, service in self.services.items()
                    if not service.held and service.worker and service.worker.process.poll() is not None
                ]
                for name in ended:
                    self.start(name)
