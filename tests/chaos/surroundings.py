"""Cases in which what the processes stand on fails: Redis, the network, the disk, the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from tests.chaos.case import case
from tests.chaos.disk import no_file_grows
from tests.chaos.peer import FACTORY, VISIBILITY_S
from tests.chaos.proxy import Mode
from tests.chaos.run import Run, Skipped
from tests.chaos.stack import GATEWAY, IO, REDIS, Needs

HOUR_S = 3600.0
FULL_BYTES = 1  # far less than it holds already


@case("redis-restart", "Redis stopped or killed, and started again on its append-only file")
def redis_restart(run: Run) -> None:
    def away(end: Callable[[], None]) -> None:
        end()
        time.sleep(run.size.outage_s)
        run.stack.redis.start()

    with run.under_load():
        for end in (run.stack.redis.stop, run.stack.redis.kill) * run.size.strikes:
            run.strike(lambda end=end: away(end))


@case("redis-frozen", "Redis frozen, its sockets open")
def redis_frozen(run: Run) -> None:
    def frozen() -> None:
        run.stack.redis.freeze()
        time.sleep(run.size.outage_s)
        run.stack.redis.thaw()

    with run.under_load():
        for _ in range(run.size.strikes):
            run.strike(frozen)


@case("redis-full", "Redis out of memory, which refuses every write")
def redis_full(run: Run) -> None:
    def full() -> None:
        run.stack.store.redis.config_set("maxmemory", FULL_BYTES)
        time.sleep(run.size.outage_s)
        run.stack.store.redis.config_set("maxmemory", 0)

    with run.under_load():
        for _ in range(run.size.strikes):
            run.strike(full)


@case("redis-cut-off", "Redis behind a proxy that resets, swallows or delays", Needs(proxied=True))
def redis_cut_off(run: Run) -> None:
    def through(mode: Mode) -> None:
        run.stack.proxy.set(mode)
        time.sleep(run.size.outage_s)
        run.stack.proxy.set(Mode.PASS)

    with run.under_load():
        for mode in (Mode.DROP, Mode.BLACK_HOLE, Mode.DELAY) * run.size.strikes:
            run.strike(lambda mode=mode: through(mode))


@case("visibility", "a peer with a visibility timeout far below the time of a job")
def visibility(run: Run) -> None:
    """Its start puts all messages back that are older than that, also of jobs that run: the cause is gone
    when these have ended.
    """
    stack = run.stack
    timeout_s = run.size.outage_s / 3
    before = len(run.load.accepted.jobs)
    settings = stack.settings.model_copy(update={"engine_factory": FACTORY})

    def peer(name: str, jobs: list[str]) -> None:
        time.sleep(timeout_s)
        stack.add_model(name, settings, {VISIBILITY_S: str(timeout_s)})
        run.wait(lambda: ": busy" in stack.logs(), "no message came twice")
        run.wait(lambda: all(map(run.has_ended, jobs)), "long jobs have not ended")

    with run.under_load():
        for number in range(run.size.strikes):
            jobs = [run.load.job(run.client, f"delay={run.size.long_s}") for _ in range(stack.settings.slots)]
            run.wait(lambda jobs=jobs: bool(set(jobs) & set(run.running())), "no long job ran")
            run.strike(lambda number=number, jobs=jobs: peer(f"peer{number}", jobs))
            stack.remove(f"peer{number}")
    if run.attempts(before) > 1:
        run.troubles.append("a message that came twice started a job twice")
    run.notes.append(f"messages of running jobs that came again: {stack.logs().count(': busy')}")


@case("disk-full", "a full disk under the file store", Needs(disk=True))
def disk_full(run: Run) -> None:
    disk, stack = run.stack.disk, run.stack

    def no_room() -> AbstractContextManager[None]:
        pids = [stack.worker(name).process.pid for name in (GATEWAY, IO)]
        return no_file_grows(pids) if disk is None else disk.full()

    def full() -> None:
        with no_room():
            time.sleep(run.size.outage_s)

    if disk is None:
        run.notes.append("no small disk can be mounted here: a limit on the size of files stands for it")
    with run.under_load():
        for _ in range(run.size.strikes):
            run.strike(full)


@case("clock-peers", "clocks of io worker, gateway and a model worker set by an hour", Needs(clocks=True))
def clock_peers(run: Run) -> None:
    """Apart, then the other way; each time a worker is killed, whose jobs must be missed as soon as ever."""
    _need_clocks(run)
    with run.under_load():
        for offset_s in (-HOUR_S, HOUR_S) * run.size.strikes:
            offsets = {IO: offset_s, GATEWAY: -offset_s, "model0": offset_s}
            run.strike(partial(_step_and_kill, run, offsets))
        for name in offsets:
            run.stack.clocks[name].set(0)


@case("clock-redis", "the clock of Redis set forward by an hour, and back", Needs(clocks=True))
def clock_redis(run: Run) -> None:
    """Likewise."""
    _need_clocks(run)
    with run.under_load():
        for offset_s in (HOUR_S, 0.0) * run.size.strikes:
            run.strike(partial(_step_and_kill, run, {REDIS: offset_s}))


def _step_and_kill(run: Run, offsets_s: Mapping[str, float]) -> None:
    for name, offset_s in offsets_s.items():
        run.stack.clocks[name].set(offset_s)
    run.stack.kill("model1")


def _need_clocks(run: Run) -> None:
    if not run.stack.clocks:
        raise Skipped("no C compiler, or not Linux: no clock can be set for one process")
