"""Looks for holders of leases whose connections have ended, and ends their leases."""

from __future__ import annotations

import logging
import time

import redis

from tasks.recovery.lost_holders import LOOKS, Look, LostHolders, lost_after_s
from tasks.store.database import LIST, Database, listed_names
from tasks.store.scripts import answering

log = logging.getLogger(__name__)


class HolderWatch:
    """Kept by each io worker: what one of them has done, no other does again. look() is for one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lost = LostHolders.of(database.settings)
        self._refused = False  # by Redis, whatever is asked

    @property
    def interval_s(self) -> float:
        """Between two looks."""
        return lost_after_s(self._database.settings) / LOOKS

    def look(self) -> int:
        """How many leases were ended, of jobs and windows. Raises StoreUnavailable."""
        found = self._ask()
        lost = [] if found is None else self._lost.update(found)
        return sum(self._end(missing.name, missing.beats) for missing in lost)

    def _ask(self) -> Look | None:
        with answering(), self._database.redis.pipeline(transaction=False) as pipe:
            pipe.execute_command(*LIST)
            pipe.info("server")
            pipe.hgetall(f"{self._database.prefix}holders")
            at_s = time.monotonic()
            try:
                listed, info, beats = pipe.execute()
            except redis.ResponseError as error:
                if not self._refused:
                    log.warning("the jobs of a killed worker wait for their leases: %s", error)
                self._refused = True
                return None
        self._refused = False
        return Look(
            at_s,
            info["run_id"],
            info["uptime_in_seconds"],
            {name: int(count) for name, count in beats.items()},
            listed_names(listed),
        )

    def _end(self, name: str, beats: int) -> int:
        ended: int = self._database.scripts.run("queues/expire_leases", name, beats)
        if ended:
            log.warning("%s has no connection any more: %d of its leases were ended", name, ended)
        return ended
