"""Which model workers are alive: one entry each that dies with its time to live, and the set of them.

And which models jobs may wait for: those that workers have served, and those that somebody has announced.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tasks.store.database import Database
from tasks.store.scripts import answering

log = logging.getLogger(__name__)

NOT_LISTED = "Redis does not list connections by name here: the jobs of a killed worker wait for their leases"
MOST_SEEN = 256  # models that are remembered, those served last


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One live worker. context_length is the most tokens one request may use; started_at Unix seconds."""

    id: str
    model: str
    context_length: int
    slots: int
    pid: int
    host: str
    started_at: float
    details: Mapping[str, object] = field(default_factory=dict)  # quantization, draft_sources, ...
    metrics: Mapping[str, Any] = field(default_factory=dict)  # numbers, and some in dictionaries of them

    @property
    def has_heads(self) -> bool:
        """Whether it can decode with draft heads. Workers of before speculation do not say."""
        sources = self.details.get("draft_sources")
        return isinstance(sources, Sequence) and "medusa" in sources


class Registry:
    """Kept in a database."""

    def __init__(self, database: Database, ttl_s: float) -> None:
        self._database, self._redis = database, database.redis
        self._listed: bool | None = None  # whether Redis lists connections of this database by name
        self._holders = f"{database.prefix}holders"
        self._members = f"{database.prefix}workers"
        self._prefix = f"{database.prefix}worker:"
        self._models = f"{database.prefix}models"
        self._announced = f"{database.prefix}announced"
        self._ttl_ms = round(ttl_s * 1000)

    def refresh(self, worker: WorkerInfo) -> None:
        """Say that it lives. Where Redis lists its connections, its leases end with these."""
        if self._database.name and self._listed is None:
            self._listed = self._database.is_listed()
            if not self._listed:
                log.warning(NOT_LISTED)
        with answering(), self._redis.pipeline() as pipe:
            pipe.set(self._prefix + worker.id, json.dumps(asdict(worker)), px=self._ttl_ms)
            pipe.sadd(self._members, worker.id)
            pipe.zadd(self._models, {worker.model: round(time.time() * 1000)})
            pipe.zremrangebyrank(self._models, 0, -MOST_SEEN - 1)
            if self._listed:
                pipe.hincrby(self._holders, self._database.name, 1)
            pipe.execute()

    def announce_models(self, names: Iterable[str], ttl_s: float) -> None:
        """Say that a worker will be started for each of these when jobs wait for it, for so long (s).

        Say it again before that is over. Online requests for them wait, as jobs do. Raises StoreUnavailable.
        """
        with answering(), self._redis.pipeline() as pipe:
            for name in names:
                pipe.set(self._announced + ":" + name, 1, px=max(1, round(ttl_s * 1000)))
                pipe.sadd(self._announced, name)
            pipe.execute()

    def announced(self) -> frozenset[str]:
        """The models that are announced now. Raises StoreUnavailable."""
        with answering():
            names = sorted(self._redis.smembers(self._announced))
            if not names:
                return frozenset()
            there = self._redis.mget([self._announced + ":" + name for name in names])
        return frozenset(name for name, found in zip(names, there, strict=True) if found)

    def seen(self) -> frozenset[str]:
        """Models that workers have served, whether or not they still do. Raises StoreUnavailable."""
        with answering():
            return frozenset(self._redis.zrange(self._models, 0, -1))

    def leave(self, worker_id: str) -> None:
        with answering(), self._redis.pipeline() as pipe:
            pipe.delete(self._prefix + worker_id)
            pipe.srem(self._members, worker_id)
            pipe.hdel(self._holders, self._database.name)
            pipe.execute()

    def live(self) -> list[WorkerInfo]:
        """The live workers by id; forgets those that fell silent. Raises StoreUnavailable."""
        with answering():
            ids = sorted(self._redis.smembers(self._members))
            if not ids:
                return []
            records = self._redis.mget([self._prefix + worker_id for worker_id in ids])
            gone = [worker_id for worker_id, record in zip(ids, records, strict=True) if not record]
            if gone:
                self._redis.srem(self._members, *gone)
        return [_info(json.loads(record)) for record in records if record]


def _info(record: Mapping[str, Any]) -> WorkerInfo:
    """Without what only newer workers tell of themselves."""
    known = {field.name for field in fields(WorkerInfo)}
    return WorkerInfo(**{name: value for name, value in record.items() if name in known})
