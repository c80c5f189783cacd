"""Moves ended lines from Redis into segment files.

They are counted where they end: in lib/windows.lua, invalid lines in validated.lua. Lines that were never
sent are in no count.

A segment is written first, under a unique name, and recorded afterwards. If the process is killed in
between, or another leads by then, the file is never recorded, and its lines are written again to another
segment.
"""

from __future__ import annotations

import time

from tasks.batches.jobs_of_lines import collect_jobs
from tasks.batches.segments import new_segment_name, write_segment
from tasks.batches.store import BatchStore
from tasks.files.base import FileStore
from tasks.records.batch_work import Active
from tasks.store.scripts import Scripts

SEGMENT_RESULTS = 1024  # at most in one segment
FULL = 512  # results that are collected at once
FULL_BYTES = 4 * 1024 * 1024
# Results are gathered for WAIT_SHARE of the batch's age, within these two limits: a night's batch
# has hundreds of segments, not thousands.
FIRST_WAIT_S = 0.5
MOST_WAIT_S = 20.0
WAIT_SHARE = 0.02


class Collector:
    """One thread."""

    def __init__(self, batches: BatchStore, scripts: Scripts, files: FileStore, token: str) -> None:
        self._batches, self._scripts, self._files, self._token = batches, scripts, files, token
        self._last: dict[str, float] = {}  # batch -> when it was last collected, on the monotonic clock

    def collect(self, active: Active, now: float) -> int:
        """Collect what is due of one batch; return how many lines were taken.

        now: Unix seconds. Raises LeadLost and what the stores raise.
        """
        batch = active.batch
        if not active.uncollected or not self._due(active, now):
            return 0
        taken = self._collect_lines(batch.id) if active.uncollected > active.ended_jobs else 0
        if active.ended_jobs:
            taken += collect_jobs(self._scripts, self._files, self._token, batch.id, SEGMENT_RESULTS)
        self._last[batch.id] = time.monotonic()
        return taken

    def _collect_lines(self, batch_id: str) -> int:
        found = self._batches.next_results(self._token, batch_id, SEGMENT_RESULTS)
        if not found.lines:
            return 0
        name = new_segment_name(found.number)
        write_segment(self._files, batch_id, name, found.lines)
        counted = self._batches.segment_stored(self._token, batch_id, name, found)
        return len(found.lines) if counted else 0

    def forget(self, batch_id: str) -> None:
        self._last.pop(batch_id, None)

    def _due(self, active: Active, now: float) -> bool:
        if active.uncollected >= FULL or active.result_bytes >= FULL_BYTES or not active.live:
            return True
        age = now - active.batch.created_at
        wait = min(max(FIRST_WAIT_S, age * WAIT_SHARE), MOST_WAIT_S)
        return time.monotonic() - self._last.get(active.batch.id, float("-inf")) >= wait
