"""A real RabbitMQ for tests, where the machine has one: of `apt-get install rabbitmq-server`, or unpacked."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import uuid
from pathlib import Path

from tests.servers import free_port
from tests.workers import wait_until

# The script itself: what lies in /usr/sbin changes to a user of its own.
SCRIPT = Path(os.environ.get("MEDUSAQ_TEST_RABBITMQ", "/usr/lib/rabbitmq/bin/rabbitmq-server"))
START_LIMIT_S = 60.0


def rabbit_missing() -> str:
    """Why the tests that need it are left out; empty when they are not."""
    if not SCRIPT.exists():
        return f"no {SCRIPT}: install rabbitmq-server"
    return "" if shutil.which("erl") else "no erl in the PATH: install erlang"


class RabbitServer:
    """One node with its files in one folder; start() after kill() keeps durable queues."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._node_port = free_port(), free_port()
        # Erlang's register of nodes is a process that outlives them: this one is ours to end.
        self._epmd = {"ERL_EPMD_PORT": str(free_port()), "ERL_EPMD_RELAXED_COMMAND_CHECK": "1"}
        self._node = f"medusaq-{uuid.uuid4().hex[:8]}@localhost"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._port}//"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "enabled_plugins").write_text("[].\n", encoding="utf-8")
        env = os.environ | {
            **self._epmd,
            "HOME": str(self._folder),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "enabled_plugins"),
        }
        with (self._folder / "server.log").open("ab") as log:
            # A group of its own: the script has children.
            self._process = subprocess.Popen(
                [str(SCRIPT)], env=env, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, START_LIMIT_S, self._alive, (self._folder / "server.log").read_text)

    def close(self) -> None:
        """End it for good."""
        self.kill()
        subprocess.run(["epmd", "-kill"], env=os.environ | self._epmd, capture_output=True)

    def kill(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _answers(self) -> bool:
        """It greets: a listening port alone is too early."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1) as connection:
                connection.settimeout(2)
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(connection.recv(1))
        except OSError:
            return False
