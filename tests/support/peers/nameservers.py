"""Name servers for processes of tests, in a mount namespace of their own where only these are asked."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from pathlib import Path
from types import TracebackType

ADDRESS = "127.7.7.53"
PORT = 53  # the only one that resolv.conf knows
IN_NAMESPACE = (
    'mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/nsswitch.conf && shift 2 && exec "$@"'
)


class SilentNameServer:
    """Takes every question and answers none. command: put before that of a process, which then asks here."""

    def __init__(self, folder: Path, look_up_s: int) -> None:
        """look_up_s: for which the system's resolver waits, at most 30."""
        self.asked: set[str] = set()
        resolv, switch = folder / "resolv.conf", folder / "nsswitch.conf"
        resolv.write_text(f"nameserver {ADDRESS}\noptions timeout:{look_up_s} attempts:1\n")
        switch.write_text("hosts: files dns\n")
        self.command = ["unshare", "-rm", "sh", "-c", IN_NAMESPACE, "sh", str(resolv), str(switch)]
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._listen)

    def missing(self) -> str:
        """Why there can be none on this machine; '' where there can."""
        if shutil.which("unshare") is None:
            return "no unshare"
        tried = subprocess.run([*self.command, "true"], capture_output=True, text=True)
        return tried.stderr.strip() if tried.returncode else ""

    def __enter__(self) -> SilentNameServer:
        """Raises OSError where this user may not have the port."""
        self._socket.bind((ADDRESS, PORT))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (ADDRESS, PORT))
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while question := self._socket.recv(4096):
            self.asked.add(_name(question))


def _name(question: bytes) -> str:
    """That a message of DNS asks for: labels with their lengths, behind a head of 12 bytes."""
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    return ".".join(labels)
