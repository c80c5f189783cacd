"""Addresses and ports of this machine."""

from __future__ import annotations

import contextlib
import errno
import socket

from cli.base.errors import CliError

LOOPBACK = "127.0.0.1"


def check_port_free(host: str, port: int, owner: str, option: str) -> None:
    """Raise CliError if the port cannot be bound. option: the option that chooses another."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the servers do: TIME_WAIT is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise CliError(f"port {port} of {owner} {why}; choose another with {option}") from None


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that are free now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
