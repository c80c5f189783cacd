"""Looks for holders of leases whose connections have ended, and ends their leases."""

from __future__ import annotations

import logging
import time

import redis

from tasks.recovery.lost_holders import LOOKS, Look, LostHolders, Silent, lost_after_s
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
        with answering():
            try:
                lost = self._find()
            except redis.ResponseError as error:
                if not self._refused:
                    log.warning("the jobs of a killed worker wait for their leases: %s", error)
                self._refused = True
                return 0
        self._refused = False
        return sum(self._end(one.name, one.beats) for one in lost)

    def _find(self) -> list[Silent]:
        client = self._database.redis
        with client.pipeline(transaction=False) as pipe:
            pipe.info("server")
            pipe.hgetall(f"{self._database.prefix}holders")
            at_s = time.monotonic()
            info, beats = pipe.execute()
        counts = {name: int(count) for name, count in beats.items()}
        asked = self._lost.hear(Look(at_s, info["run_id"], info["uptime_in_seconds"], counts))
        if not asked:
            return []
        return self._lost.see(asked, listed_names(client.execute_command(*LIST)))

    def _end(self, name: str, beats: int) -> int:
        ended: int = self._database.scripts.run("queues/expire_leases", name, beats)
        if ended:
            log.warning("%s has no connection any more: %d of its leases were ended", name, ended)
        return ended
