"""Faults of all kinds at random for minutes, with the memory of what must not grow."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import redis

from tests.chaos.case import case
from tests.chaos.load import Expected
from tests.chaos.proxy import Mode
from tests.chaos.run import Run
from tests.chaos.stack import GATEWAY, IO, REDIS, Needs
from tests.chaos.verdict import so_far

SAMPLE_S = 1.0
SHORT_OUTAGE_S = (1.0, 15.0)  # at least and at most
GROWTH = 1.5  # of the median of the last third over that of the first, beyond which memory is not flat
SLACK_MB = 8.0  # what a small process may vary by
KEPT_S = 240  # results: longer than any recovery
STEP_S = 3600.0  # of a clock, at most;
REDIS_STEP_S = KEPT_S / 4  # of that of Redis, which must not make results too old before they are looked at
MB = 1024 * 1024


@case("soak", "all of these at random", Needs(proxied=True, disk=True, clocks=True), result_ttl_s=KEPT_S)
def soak(run: Run) -> None:
    chance = random.Random(run.seed)
    memory = Memory(run)
    ends_at = time.monotonic() + 60 * run.size.minutes
    try:
        with run.under_load():
            while time.monotonic() < ends_at:
                name, fault = chance.choice(faults(run, chance))
                print(f"soak: {name}", flush=True)
                run.strike(fault)
                run.tally += so_far(run.load, run.client)
    finally:
        memory.close()
    run.tally.pending.clear()  # looked at again in the end
    run.notes += memory.told()
    run.troubles += memory.grown()


def faults(run: Run, chance: random.Random) -> list[tuple[str, Callable[[], object]]]:
    """A name and a function for each. What goes away comes back before the function returns."""
    stack = run.stack
    some_s = min(run.size.outage_s, chance.uniform(*SHORT_OUTAGE_S))
    model = chance.choice(stack.models)
    through = stack.proxy.set

    def away(begin: Callable[[], object], end: Callable[[], object]) -> None:
        begin()
        time.sleep(some_s)
        end()

    def held_up(name: str) -> None:
        with stack.paused(name):
            time.sleep(some_s)

    def replaced(name: str) -> None:
        stack.stop(name)
        stack.start(name)

    def poisoned() -> None:
        job_id = run.load.submit(run.client, "die=1", Expected(code="worker_lost"))
        run.wait(lambda: run.has_ended(job_id), "the poison was not given up")

    def no_room() -> None:
        assert stack.disk is not None
        with stack.disk.full():
            time.sleep(some_s)

    found: list[tuple[str, Callable[[], object]]] = [
        *((f"kill {name}", partial(stack.kill, name)) for name in (model, IO, GATEWAY)),
        *((f"hold up {name}", partial(held_up, name)) for name in (model, IO, GATEWAY)),
        *((f"replace {name}", partial(replaced, name)) for name in (model, IO, GATEWAY)),
        *(
            (
                f"redis {mode.value}",
                partial(away, partial(through, mode), partial(through, Mode.PASS)),
            )
            for mode in (Mode.DROP, Mode.BLACK_HOLE, Mode.DELAY)
        ),
        ("redis stop", partial(away, stack.redis.stop, stack.redis.start)),
        ("redis kill", partial(away, stack.redis.kill, stack.redis.start)),
        ("redis frozen", partial(away, stack.redis.freeze, stack.redis.thaw)),
        ("redis full", partial(away, partial(_limit, run, 1), partial(_limit, run, 0))),
        ("poison", poisoned),
    ]
    if stack.disk is not None:
        found.append(("disk full", no_room))
    for name in (REDIS, GATEWAY, IO) if stack.clocks else ():
        most_s = REDIS_STEP_S if name == REDIS else STEP_S
        found.append((f"clock of {name}", partial(stack.clocks[name].set, chance.uniform(-most_s, most_s))))
    return found


def _limit(run: Run, maxmemory: int) -> None:
    run.stack.store.redis.config_set("maxmemory", maxmemory)


class Memory:
    """Resident MB of gateway and io worker, and what Redis says it uses, each second."""

    def __init__(self, run: Run) -> None:
        self._stack = run.stack
        self._samples: dict[str, list[float]] = {GATEWAY: [], IO: [], REDIS: []}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory")
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def told(self) -> list[str]:
        return [
            f"{name} {first:.0f} MB, in the end {last:.0f}" for name, (first, last) in self._thirds().items()
        ]

    def grown(self) -> list[str]:
        """What is not flat."""
        thirds = self._thirds().items()
        return [
            f"{name} has grown from {first:.0f} to {last:.0f} MB"
            for name, (first, last) in thirds
            if last > GROWTH * first + SLACK_MB
        ]

    def _thirds(self) -> dict[str, tuple[float, float]]:
        """The medians of the first and of the last third."""
        return {
            name: (median(values[: len(values) // 3]), median(values[-(len(values) // 3) :]))
            for name, values in self._samples.items()
            if len(values) >= 3
        }

    def _watch(self) -> None:
        while not self._stopping.wait(SAMPLE_S):
            for name in (GATEWAY, IO):
                with suppress(OSError, StopIteration):  # it has just been killed
                    self._samples[name].append(_resident_mb(self._stack.worker(name).process.pid))
            with suppress(redis.RedisError):
                self._samples[REDIS].append(self._stack.store.redis.info("memory")["used_memory"] / MB)


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
