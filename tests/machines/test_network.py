"""Hosts reach one another, and what is done to one of them has the effect that it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workers import ROOT

pytestmark = pytest.mark.stack
# In a process of its own, which moves into the network.
TRIED = """
import socket, sys, threading, time
from pathlib import Path
from tests.machines.network import CannotConnect, Network
from tests.support.workers import wait_until

ECHO = '''
import os, socket
listening = socket.create_server(("0.0.0.0", 7000))
while True:
    connection, _ = listening.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
'''

def trip_s(size=100_000, limit_s=1.0):
    began = time.monotonic()
    try:
        with socket.create_connection((host.address, 7000), limit_s) as connection:
            connection.settimeout(20.0)
            connection.sendall(bytes(size))
            while size:
                size -= len(connection.recv(65536))
    except OSError as error:
        return type(error).__name__
    return time.monotonic() - began

def answers():
    return isinstance(trip_s(size=1), float)

folder = Path(sys.argv[1])
try:
    network = Network()
    host, other = (network.add(name, folder / name) for name in ("one", "other"))
except CannotConnect as error:
    sys.exit(f"cannot: {error}")
host.serve({"echo": [sys.executable, "-c", ECHO]})
wait_until(answers)
assert min(trip_s() for _ in range(5)) < 0.1

network.cut("one")
assert trip_s() == "TimeoutError"
network.heal("one")
wait_until(answers)

network.slow("one", 0.2, 0.0)
wait_until(answers)  # the kernel may take a second to see that a cable is in
assert trip_s(size=1, limit_s=5.0) >= 0.4, "one round trip to connect, one to be answered"
network.heal("one")
network.slow("one", 0.0, 1.0)
assert trip_s() == "TimeoutError"
network.heal("one")
wait_until(answers)

host.kill()
assert trip_s() == "ConnectionRefusedError"
starting = threading.Thread(target=lambda: (host.start(), time.sleep(0.5)))
starting.start()
starting.join()
wait_until(answers)
time.sleep(0.3)
assert answers(), "it ended with the thread that started it"
assert host.ended() == []

other.serve({"ends": ["sh", "-c", "exit 3"]})
wait_until(lambda: bool(other.ended()))
assert other.ended()[0] == "other: ends ended with 3"
network.close()
print("tried")
"""


def test_a_host_is_cut_off_slowed_and_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRIED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if done.stderr.startswith("cannot: "):
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stdout) == (0, "tried\n"), done.stderr
