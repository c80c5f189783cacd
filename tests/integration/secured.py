"""Every service as `medusaq` starts it, on a Redis with a user, a password and TLS."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import httpx

from tasks.base.settings import Settings
from tasks.records.webhook import new_secret
from tests.support.forking.forks import Process, start
from tests.support.peers.tls import TlsProxy
from tests.support.servers import RedisServer
from tests.support.workers import ROOT, environment

USER, PASSWORD = "medusaq", "Redis-pass.word-8f1c"
FLOWER_PASSWORD = "Flower-pass.word-77ab"
S3_SECRET = "S3-secret.key-190d"  # any will do for the server of the tests
WEBHOOK_SECRETS = (new_secret(), new_secret())
SERVICES = ("gateway", "worker", "io", "flower")


@dataclass
class Secured:
    """A Redis that wants a user, a password and TLS, and how to get there."""

    redis: RedisServer
    proxy: TlsProxy
    ca: Path

    @property
    def url(self) -> str:
        return self.named("localhost", ssl_ca_certs=self.ca)

    def named(self, host: str, password: str = PASSWORD, **options: object) -> str:
        query = f"?{urlencode(options)}" if options else ""
        return f"rediss://{USER}:{password}@{host}:{self.proxy.port}/0{query}"


@dataclass
class System:
    """Every service as `medusaq` starts it, at the most talkative level, and what it wrote."""

    settings: Settings
    key: str
    folder: Path
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"

    @property
    def flower(self) -> str:
        return f"http://127.0.0.1:{self.settings.flower_port}"

    def start(self, name: str) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        env = environment(self.settings) | {
            "AWS_SECRET_ACCESS_KEY": S3_SECRET,
            "PYTHONUNBUFFERED": "1",
        }
        command = [sys.executable, "-P", "-m", "cli", name]
        with log:
            self.processes[name] = start(command, ROOT, env, stdout=log, stderr=log)

    def logs(self) -> str:
        return "".join(
            f"{path.name}: {path.read_text(errors='replace')}" for path in self.folder.glob("*.log")
        )

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(20)

    @property
    def ready(self) -> bool:
        try:
            ready = httpx.get(f"{self.url}/readyz").json()
            return bool(ready["workers"] and ready["io_worker"]) and httpx.get(self.flower).status_code == 401
        except httpx.TransportError:
            return False
