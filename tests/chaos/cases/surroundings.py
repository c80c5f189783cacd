"""Cases in which what the processes stand on fails: Redis, the network, the disk, the clock."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from email.utils import parsedate_to_datetime
from errno import EFBIG, ENOSPC
from functools import partial

import httpx

from tests.chaos.cases.case import case
from tests.chaos.faults.disk import BLOCK, no_file_grows
from tests.chaos.faults.proxy import Mode
from tests.chaos.run import Run, Skipped
from tests.chaos.stack import GATEWAY, IO, REDIS, Needs

HOUR_S = 3600.0
CLOSE_S = 60.0  # a clock that differs by no more is right
FULL_BYTES = 1  # far less than it holds already
TOO_LARGE = 4 * BLOCK  # for a full disk, even if something else has just been removed from it
NO_ROOM = tuple(map(os.strerror, (ENOSPC, EFBIG)))  # as the io worker says it
LOGGED = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),", re.MULTILINE)  # when, in Celery's form


@case("redis-restart", "Redis stopped or killed, and started again on its append-only file")
def redis_restart(run: Run) -> None:
    def away(end: Callable[[], None]) -> None:
        end()
        time.sleep(run.size.outage_s)
        run.stack.redis.start()

    with run.under_load():
        for end in (run.stack.redis.stop, run.stack.redis.kill) * run.size.strikes:
            _outlived(run, lambda end=end: away(end))


@case("redis-frozen", "Redis frozen, its sockets open")
def redis_frozen(run: Run) -> None:
    def frozen() -> None:
        run.stack.redis.freeze()
        time.sleep(run.size.outage_s)
        run.stack.redis.thaw()

    with run.under_load():
        for _ in range(run.size.strikes):
            _outlived(run, frozen)


@case("redis-full", "Redis out of memory, which refuses every write")
def redis_full(run: Run) -> None:
    def full() -> None:
        run.stack.store.db.redis.config_set("maxmemory", FULL_BYTES)
        time.sleep(run.size.outage_s)
        run.stack.store.db.redis.config_set("maxmemory", 0)

    with run.under_load():
        for _ in range(run.size.strikes):
            _outlived(run, full)


@case("redis-disk-full", "a full disk under the append-only file of Redis", Needs(redis_disk=True))
def redis_disk_full(run: Run) -> None:
    """It answers, and refuses every write until what it could not write is written."""
    if run.stack.redis_disk is None:
        raise Skipped("no small disk can be mounted for Redis")
    disk, store = run.stack.redis_disk, run.stack.store

    def full() -> None:
        with disk.full():
            run.wait(
                lambda: store.db.redis.info("persistence")["aof_last_write_status"] == "err",
                "it had room",
            )
            time.sleep(run.size.outage_s)

    with run.under_load():
        for _ in range(run.size.strikes):
            _outlived(run, full)


@case("redis-cut-off", "Redis behind a proxy that resets, swallows or delays", Needs(proxied=True))
def redis_cut_off(run: Run) -> None:
    def through(mode: Mode) -> None:
        run.stack.proxy.set(mode)
        time.sleep(run.size.outage_s)
        run.stack.proxy.set(Mode.PASS)

    with run.under_load():
        for mode in (Mode.DROP, Mode.BLACK_HOLE, Mode.DELAY) * run.size.strikes:
            _outlived(run, lambda mode=mode: through(mode))


@case("disk-full", "a full disk under the file store", Needs(disk=True))
def disk_full(run: Run) -> None:
    disk, stack = run.stack.disk, run.stack

    def no_room() -> AbstractContextManager[None]:
        pids = [stack.worker(name).process.pid for name in (GATEWAY, IO)]
        return no_file_grows(pids) if disk is None else disk.full()

    def full() -> None:
        said = _refusals(run)
        with no_room():
            content = {"file": ("large.jsonl", b"x" * TOO_LARGE)}
            answer = httpx.post(f"{stack.url}/v1/files", data={"purpose": "batch"}, files=content, timeout=30)
            if answer.status_code != httpx.codes.INSUFFICIENT_STORAGE:
                run.troubles.append(f"a full disk took an upload: {answer.status_code}")
            time.sleep(run.size.outage_s)
            run.wait(lambda: _refusals(run) > said, "the io worker wrote to a full disk")

    if disk is None:
        run.notes.append("no small disk can be mounted here: a limit on the size of files stands for it")
    with run.under_load():
        for _ in range(run.size.strikes):
            run.outage(full)


@case("clock-peers", "clocks of io worker, gateway and a model worker set by an hour", Needs(clocks=True))
def clock_peers(run: Run) -> None:
    """Apart, then the other way; each time a worker is killed, whose jobs must be missed as soon as ever."""
    _need_clocks(run)
    model, other = run.stack.models[:2]
    with run.under_load():
        for offset_s in (-HOUR_S, HOUR_S) * run.size.strikes:
            _step_and_kill(run, {IO: offset_s, GATEWAY: -offset_s, model: offset_s}, other)
        for name in (IO, GATEWAY, model):
            run.stack.clocks[name].set(0)


@case("clock-redis", "the clock of Redis set forward by an hour, and back", Needs(clocks=True))
def clock_redis(run: Run) -> None:
    """Likewise."""
    _need_clocks(run)
    with run.under_load():
        for offset_s in (HOUR_S, 0.0) * run.size.strikes:
            _step_and_kill(run, {REDIS: offset_s}, run.stack.models[0])


def _outlived(run: Run, fault: Callable[[], object]) -> None:
    """Strike with an outage that no process ends for."""
    before = run.stack.starts
    run.outage(fault)
    ended = [name for name, starts in run.stack.starts.items() if starts > before.get(name, starts)]
    if ended:
        run.troubles.append(f"ended for it: {', '.join(ended)}")


def _refusals(run: Run) -> int:
    said = run.stack.worker(IO).text()
    return sum(map(said.count, NO_ROOM))


def _step_and_kill(run: Run, offsets_s: Mapping[str, float], victim: str) -> None:
    def fault() -> None:
        for name, offset_s in offsets_s.items():
            run.stack.clocks[name].set(offset_s)
        run.stack.kill(victim)

    run.is_busy(victim)
    run.strike(fault)
    for name, offset_s in offsets_s.items():
        right = partial(_is_ahead, run, name, offset_s)
        run.wait(right, f"the clock of {name} is not {offset_s:g} s ahead")


def _is_ahead(run: Run, name: str, offset_s: float) -> bool:
    return abs(_time_of(run, name) - time.time() - offset_s) < CLOSE_S


def _time_of(run: Run, name: str) -> float:
    """As others see it: Redis is asked, the gateway dates its answers, workers what they log."""
    stack = run.stack
    if name == REDIS:
        seconds, _ = stack.store.db.redis.time()
        return float(seconds)
    if name == GATEWAY:
        return parsedate_to_datetime(httpx.get(f"{stack.url}/healthz").headers["date"]).timestamp()
    *_, last = ["1970-01-02 00:00:00", *LOGGED.findall(stack.worker(name).text())]
    return time.mktime(time.strptime(last, "%Y-%m-%d %H:%M:%S"))


def _need_clocks(run: Run) -> None:
    if not run.stack.clocks:
        raise Skipped("no C compiler, or not Linux: no clock can be set for one process")
