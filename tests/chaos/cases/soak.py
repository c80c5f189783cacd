"""Faults of many kinds at random for minutes, and then none, while nothing may grow."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tests.chaos.cases.case import case
from tests.chaos.clients.load import Expected
from tests.chaos.faults.proxy import Mode
from tests.chaos.judging.memory import Memory
from tests.chaos.judging.verdict import so_far
from tests.chaos.run import Run
from tests.chaos.stack import GATEWAY, IO, OTHER, REDIS, Needs

SHORT_OUTAGE_S = (1.0, 15.0)  # at least and at most
KEPT_S = 120  # results: they are dropped from the third minute on
LOOK_S = 0.5  # so that each is looked at before
STEP_S = 3600.0  # of a clock, at most;
REDIS_STEP_S = KEPT_S / 4  # of that of Redis, which must not make results too old before they are looked at
CALM_S = 130.0  # after the last fault, until what it left is made up for and dropped
FLAT_S = 120.0  # for which memory is then watched


@case(
    "soak",
    "a soak: kills, outages, replacements and steps of clocks at random",
    Needs(proxied=True, disk=True, clocks=True),
    result_ttl_s=KEPT_S,
)
def soak(run: Run) -> None:
    chance = random.Random(run.seed)
    ends_at = time.monotonic() + 60 * run.size.minutes
    with run.under_load(), _looking(run):
        while time.monotonic() < ends_at:
            name, fault = chance.choice(faults(run, chance))
            print(f"soak: {name}", flush=True)
            run.outage(fault)
        time.sleep(CALM_S)
        with Memory(run.stack) as memory:
            time.sleep(FLAT_S)
    run.notes += memory.told()
    run.troubles += memory.troubles()


@contextmanager
def _looking(run: Run) -> Iterator[None]:
    """What ends meanwhile is looked at all the while.

    Raises what kept it from that: what was not looked at in time is dropped, as if it had been lost.
    """
    done, client = threading.Event(), run.load.client()
    failures: list[Exception] = []

    def look() -> None:
        try:
            while not done.wait(LOOK_S):
                run.tally += so_far(run.load, client)
                run.tally.pending.clear()  # looked at again, and in the end
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=look, name="looking")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        client.close()
    if failures:
        raise failures[0]


def faults(run: Run, chance: random.Random) -> list[tuple[str, Callable[[], object]]]:
    """A name and a function for each. What goes away comes back before the function returns."""
    stack = run.stack
    some_s = min(run.size.outage_s, chance.uniform(*SHORT_OUTAGE_S))
    model = chance.choice([*stack.models, OTHER])
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

    def added_and_removed() -> None:
        stack.add_model("model-new")
        stack.wait_ready()
        stack.remove("model-new")

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
        ("one more model worker for a while", added_and_removed),
    ]
    if stack.disk is not None:
        found.append(("disk full", no_room))
    for name in (REDIS, GATEWAY, IO, model) if stack.clocks else ():
        most_s = REDIS_STEP_S if name == REDIS else STEP_S
        found.append((f"clock of {name}", partial(stack.clocks[name].set, chance.uniform(-most_s, most_s))))
    return found


def _limit(run: Run, maxmemory: int) -> None:
    run.stack.store.db.redis.config_set("maxmemory", maxmemory)
