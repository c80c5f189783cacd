"""Hosts on one machine: each has a network, processes and a name of its own; a bridge connects them.

The calling process moves into the network of the bridge, where it has an address as well. Nothing is seen
outside, and nothing is left when it ends.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.workers import wait_until

CLONE_NEWNET = 0x40000000  # linux/sched.h
TOOLS = ("ip", "nsenter", "setpriv", "unshare")
SUBNET = "10.77.0"
OURS = f"{SUBNET}.1"  # of the process that makes the network
BRIDGE = "bridge"
WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]
# Its end kills all that is in it; process ids begin at 1 at each start, as those of a container do.
OWN_PROCESSES = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
RESTART_S = 1.0  # after which a host starts a service again that has ended
LINK = Path(__file__).with_name("link.py")
ENDED = "ended"  # file of a host: the services that have ended by themselves


class CannotConnect(Exception):
    """This machine makes no such networks; the message says why."""


# What is started WITH_PARENT is killed when the thread that started it ends: this one ends as we do.
_starter = ThreadPoolExecutor(1)


def _started(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    return _starter.submit(subprocess.Popen, [*WITH_PARENT, *command], **how).result()


def _ip(*words: str, inside: Sequence[str] = ()) -> None:
    done = subprocess.run([*inside, "ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotConnect(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Host:
    """Made by Network.add(). start() its services, kill() them all."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address, self.folder = name, address, folder
        self.link = f"to-{name}"  # the end of its cable that is not in it
        folder.mkdir(parents=True)
        self._commands: dict[str, list[str]] = {}
        self._env: dict[str, str] = {}
        self._processes: subprocess.Popen[bytes] | None = None
        self._network = _started(["unshare", "--net", "sleep", "infinity"])
        own = Path("/proc/self/ns/net").readlink()
        wait_until(lambda: self._namespace().readlink() != own)

    @property
    def inside(self) -> list[str]:
        """The words before a command that is to run in its network."""
        return ["nsenter", f"--net={self._namespace()}"]

    @property
    def pid(self) -> int:
        return self._network.pid

    @property
    def runs(self) -> bool:
        return self._processes is not None

    def serve(self, commands: Mapping[str, Sequence[str]], env: Mapping[str, str] | None = None) -> None:
        """Start these services, by their names; each is started again when it ends."""
        self._commands = {name: list(command) for name, command in commands.items()}
        self._env = dict(os.environ if env is None else env)
        self.start()

    def start(self) -> None:
        """What it served last."""
        assert self._processes is None
        loops = [self._loop(name, command) for name, command in self._commands.items()]
        script = " ".join([f"hostname {self.name};", *loops, "wait"])
        command = [*self.inside, *OWN_PROCESSES, "sh", "-c", script]
        with (self.folder / "host.log").open("ab") as log:
            self._processes = _started(command, cwd=self.folder, env=self._env, stderr=log)

    def kill(self) -> None:
        """SIGKILL to every process in it at once; returns when none is left."""
        assert self._processes is not None
        pid = self._processes.pid
        first = Path(f"/proc/{pid}/task/{pid}/children")
        wait_until(lambda: bool(first.read_text(encoding="utf-8")))
        os.kill(int(first.read_text(encoding="utf-8")), signal.SIGKILL)  # and the kernel kills the others
        self._processes.wait()
        self._processes = None

    def ended(self) -> list[str]:
        """What has ended without being killed with the host, each with its exit code."""
        found = self.folder / ENDED
        return found.read_text(encoding="utf-8").splitlines() if found.exists() else []

    def close(self) -> None:
        if self._processes is not None:
            self.kill()
        self._network.kill()
        self._network.wait()

    def _loop(self, name: str, command: list[str]) -> str:
        log, ended = f"{shlex.quote(name)}.log", ENDED
        told = f'echo "{self.name}: {name} ended with $?" >>{ended}'
        return f"(while :; do {shlex.join(command)} >>{log} 2>&1; {told}; sleep {RESTART_S}; done) &"

    def _namespace(self) -> Path:
        return Path(f"/proc/{self._network.pid}/ns/net")


class Network:
    """Raises CannotConnect where the machine or the user may not. The process must have one thread only."""

    def __init__(self) -> None:
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise CannotConnect(f"{', '.join(missing)} missing")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            raise CannotConnect(f"no network of its own: {os.strerror(ctypes.get_errno())}")
        _ip("link", "set", "lo", "up")
        # The bridge has the address, not the ends of the cables: whoever is cut off must not hear of it.
        for name, value in {"all/arp_ignore": "1", "default/arp_ignore": "1"}.items():
            with suppress(OSError):  # read-only: then a host that is cut off believes to see us
                Path(f"/proc/sys/net/ipv4/conf/{name}").write_text(value, encoding="utf-8")
        _ip("link", "add", BRIDGE, "type", "bridge", "forward_delay", "0")
        _ip("address", "add", f"{OURS}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        self.hosts: dict[str, Host] = {}
        self._slow: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, name: str, folder: Path) -> Host:
        """folder: of the host alone."""
        host = Host(name, f"{SUBNET}.{len(self.hosts) + 2}", folder)
        self.hosts[name] = host
        _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        _ip("address", "add", f"{host.address}/24", "dev", "eth0", inside=host.inside)
        for interface in ("lo", "eth0"):
            _ip("link", "set", interface, "up", inside=host.inside)
        _ip("link", "set", host.link, "master", BRIDGE, "up")
        return host

    def cut(self, name: str) -> None:
        """From now on no packet comes or goes. No connection is closed for it."""
        _ip("link", "set", self.hosts[name].link, "nomaster")

    def slow(self, name: str, round_trip_s: float, loss: float) -> None:
        """From now on packets come so late, and a share of them not at all, in both directions."""
        link = self.hosts[name].link
        near, far = f"s-{name}", f"t-{name}"
        _ip("link", "add", near, "type", "veth", "peer", "name", far)
        _ip("link", "set", near, "up")
        command = [sys.executable, "-I", "-S", str(LINK), link, near, str(round_trip_s / 2), str(loss)]
        self._slow[name] = begun = _started(command, stdout=subprocess.PIPE)
        assert begun.stdout is not None
        assert begun.stdout.readline(), "the slow link did not begin"
        _ip("link", "set", link, "nomaster")
        _ip("link", "set", far, "master", BRIDGE, "up")

    def heal(self, name: str) -> None:
        """As it was before cut() or slow()."""
        if (slowed := self._slow.pop(name, None)) is not None:
            assert slowed.poll() is None, "the slow link broke"
            slowed.kill()
            slowed.communicate()
            _ip("link", "delete", f"s-{name}")
        _ip("link", "set", self.hosts[name].link, "master", BRIDGE)

    def close(self) -> None:
        """End all hosts; the process stays in the network."""
        for name in [*self._slow]:
            self.heal(name)
        for host in self.hosts.values():
            _ip("link", "delete", host.link)  # with the host alone it would go some time later
            host.close()
        self.hosts.clear()
