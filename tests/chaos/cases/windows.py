"""Cases about windows: lines of a batch that travel, run and are lost together."""

from __future__ import annotations

import json
import time
from functools import partial

from tasks.base.queue_names import WINDOWS, list_key
from tests.chaos.cases.case import case
from tests.chaos.cases.processes import TRIES, in_turns
from tests.chaos.run import LOOK_S, Run
from tests.support.scripted import MODEL_NAME

TIMES_THE_LINES = 5  # of the load's batches: its windows are larger than a worker has slots
CATCH_S = 20.0
TAKING_S = 1.0  # after the first message
DROPPED = "dropped a message of "  # what a worker says of one that comes a second time


@case("kill-in-window", "kill -9 of a model worker in the middle of a window", limit_s=10.0)
def kill_in_window(run: Run) -> None:
    with run.under_load():
        for name in in_turns(run, run.size.strikes):
            if not any(_killed_halfway(run, name) for _ in range(TRIES)):
                run.troubles.append(f"{name} was never caught in the middle of a window")


@case("window-messages", "messages of windows that are lost, or come twice")
def window_messages(run: Run) -> None:
    with run.under_load():
        for copies in (0, 2) * run.size.strikes:
            run.load.batch(run.client, TIMES_THE_LINES * run.size.lines)
            run.strike(partial(_change_messages, run, copies))


def _killed_halfway(run: Run, name: str) -> bool:
    """Held up first, so that it is in the middle for certain when it is killed.

    Of a batch of its own: the other worker may have run all windows of the one before.
    """
    run.load.batch(run.client, TIMES_THE_LINES * run.size.lines)
    give_up = time.monotonic() + CATCH_S
    while not _is_halfway(run, name):
        if time.monotonic() > give_up:
            return False
        time.sleep(LOOK_S)
    with run.stack.paused(name):
        halfway = _is_halfway(run, name)
        if halfway:
            run.strike(lambda: run.stack.kill(name))
    return halfway


def _is_halfway(run: Run, name: str) -> bool:
    """Whether it has a window of which some lines have ended, some run, and some wait."""
    for work_id in run.jobs_of(name):
        states, opened = run.stack.store.db.redis.hmget(_record(run, work_id), "states", "opened")
        if states and "1" in states and "0" in states[: int(opened)] and int(opened) < len(states):
            return True
    return False


def _change_messages(run: Run, copies: int) -> None:
    """Take the messages of some windows away and put so many of each back, until the windows run."""
    redis = run.stack.store.db.redis
    queues = [list_key(run.stack.settings, WINDOWS, model) for model in ("", MODEL_NAME)]
    taken: list[tuple[str, str]] = []

    def all_taken() -> bool:
        until = time.monotonic() + TAKING_S
        while time.monotonic() < until and (found := redis.brpop(queues, timeout=TAKING_S)):
            taken.append(found)
        return bool(taken)

    run.wait(all_taken, "no message of a window came")
    fences = {}
    for queue, text in taken:
        window_id = json.loads(text)["headers"]["id"]
        fences[window_id] = redis.hget(_record(run, window_id), "fence")
        for _ in range(copies):
            redis.lpush(queue, text)
    run.wait(lambda: all(_has_begun(run, *each) for each in fences.items()), "a window waits for ever")
    if copies:
        run.wait(
            lambda: all(DROPPED + window_id in run.stack.logs() for window_id in fences),
            "a message that came twice was not dropped",
        )


def _has_begun(run: Run, window_id: str, fence: str | None) -> bool:
    """Whether a worker has taken it since, or it has ended."""
    now = run.stack.store.db.redis.hget(_record(run, window_id), "fence")
    return bool(now is None or now != fence)


def _record(run: Run, work_id: str) -> str:
    """The key of a window's record; of a job there is none by that name."""
    return f"{run.stack.store.db.prefix}win:{work_id}"
