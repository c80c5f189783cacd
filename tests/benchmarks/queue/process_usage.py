"""What processes take while a benchmark runs: processor time, and memory at its peak."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import redis

MB = 2**20
TICKS = os.sysconf("SC_CLK_TCK")
LOOK_S = 0.2
REDIS = "Redis"


class Watch:
    """Processor seconds and peak memory (bytes) of processes by name, and of Redis."""

    def __init__(self, processes: Mapping[str, int], redis_port: int) -> None:
        self.peaks = dict.fromkeys((*processes, REDIS), 0)
        self._processes, self._port = processes, redis_port
        self._before: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def begin(self) -> None:
        """From here on `seconds` counts."""
        self._before = self._used()

    def seconds(self) -> dict[str, float]:
        return {name: now - self._before[name] for name, now in self._used().items()}

    def memory(self) -> dict[str, int]:
        with redis.Redis(port=self._port) as server:
            held = int(server.info("memory")["used_memory"])
        return {name: rss(pid) for name, pid in self._processes.items()} | {REDIS: held}

    def _used(self) -> dict[str, float]:
        with redis.Redis(port=self._port) as server:
            found = server.info("cpu")
        own = {name: cpu_s(pid) for name, pid in self._processes.items()}
        return own | {REDIS: found["used_cpu_user"] + found["used_cpu_sys"]}

    def _loop(self) -> None:
        while not self._stop.wait(LOOK_S):
            for name, size in self.memory().items():
                self.peaks[name] = max(self.peaks[name], size)


def cpu_s(pid: int) -> float:
    """Of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss(pid: int) -> int:
    """Bytes; 0 if it has ended."""
    try:
        rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) * 1024 for row in rows if row.startswith("VmRSS")), 0)
