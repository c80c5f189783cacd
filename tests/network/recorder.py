"""Starts the recording network, and tells what was recorded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.workers import ROOT, wait_until

TOOLS = ("unshare", "nsenter", "ip", "mount")
SELF_CHECK = """
import contextlib, socket
for family, address in ((socket.AF_INET, "198.51.100.7"), (socket.AF_INET6, "2001:db8:7::7")):
    with contextlib.suppress(OSError):
        socket.getaddrinfo("self-check.example", 443, family)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(family, kind) as asking:
            asking.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                asking.connect((address, 443))
                asking.send(b"x")
"""
CHECKED = {
    "name self-check.example",
    "packet tcp 198.51.100.7 443",
    "packet udp 198.51.100.7 443",
    "packet tcp 2001:db8:7::7 443",
    "packet udp 2001:db8:7::7 443",
}


class CannotRecord(Exception):
    """This machine makes no such network; the message says why."""


class Recorder:
    """command runs Python in the network: put it after sys.executable."""

    def __init__(self, folder: Path) -> None:
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise CannotRecord(f"{', '.join(missing)} missing")
        self._record = folder / "record"
        command = ["unshare", "--net", "--mount", sys.executable, "-m", "tests.network.record"]
        with self._record.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, str(folder / "resolv.conf")], cwd=ROOT, stdout=out, stderr=subprocess.PIPE
            )
        wait_until(lambda: "ready" in self.lines or self._process.poll() is not None)
        if self._process.poll() is not None:
            assert self._process.stderr is not None
            why = self._process.stderr.read().decode().strip()
            self.close()
            raise CannotRecord(why)
        self.command = ["-m", "tests.network.inside", str(self._process.pid)]

    @property
    def lines(self) -> list[str]:
        return self._record.read_text(encoding="utf-8").splitlines()

    def asked(self) -> set[str]:
        """What was asked since the start, but for what check_itself() asked."""
        return set(self.lines) - {"ready"} - CHECKED

    def check_itself(self) -> None:
        """Fail unless a deliberate look-up and deliberate packets are recorded."""
        subprocess.run([sys.executable, *self.command, "-c", SELF_CHECK], cwd=ROOT, check=True, timeout=60)
        wait_until(lambda: set(self.lines) >= CHECKED, report=lambda: str(self.lines))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()
