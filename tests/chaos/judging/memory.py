"""What the processes of a stack hold in memory, and whether it grows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import redis

from tests.chaos.stack import REDIS, Stack

SAMPLE_S = 1.0
ENOUGH = 60  # samples of a life, to say anything
GROWTH = 1.05  # of the last third's median over the first's, beyond which memory is not flat ...
SLACK_MB = 1.0  # ... with so much more on top
MB = 1024 * 1024

Life = tuple[str, int]  # a process, and how often it had been started


class Memory:
    """As a context samples each second what is resident of each process, and what Redis says it uses.

    By life: one that is started again begins anew.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._samples: dict[Life, list[float]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory")

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def told(self) -> list[str]:
        """Of the lives that lasted."""
        return [
            f"{name} {first:.1f} MB, in the end {last:.1f}"
            for (name, _), samples in self._samples.items()
            if (ends := thirds(samples))
            for first, last in (ends,)
        ]

    def troubles(self) -> list[str]:
        """What has grown, and what of all that runs lived too briefly to tell."""
        found = [f"{name} has grown {how}" for (name, _), s in self._samples.items() if (how := growth(s))]
        lasted = {name for (name, _), samples in self._samples.items() if thirds(samples)}
        return found + [f"too few samples of {name}" for name in {REDIS, *self._stack.services} - lasted]

    def _watch(self) -> None:
        while not self._stopping.wait(SAMPLE_S):
            for name, starts in self._stack.starts.items():
                with suppress(OSError, StopIteration, KeyError):  # it has just been killed or removed
                    self._note((name, starts), _resident_mb(self._stack.worker(name).process.pid))
            with suppress(redis.RedisError):
                self._note((REDIS, 0), self._stack.store.db.redis.info("memory")["used_memory"] / MB)

    def _note(self, life: Life, mb: float) -> None:
        self._samples.setdefault(life, []).append(mb)


def thirds(samples: Sequence[float]) -> tuple[float, float] | None:
    """The medians of the first and of the last third; None for too few."""
    if len(samples) < ENOUGH:
        return None
    third = len(samples) // 3
    return median(samples[:third]), median(samples[-third:])


def growth(samples: Sequence[float]) -> str:
    """From what to what, of that which is not flat; empty for the rest."""
    ends = thirds(samples)
    if ends is None or ends[1] <= GROWTH * ends[0] + SLACK_MB:
        return ""
    return f"from {ends[0]:.1f} to {ends[1]:.1f} MB"


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
