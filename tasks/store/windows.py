"""The store of windows: every change of a window and of its lines is one Lua script.

The scripts are in lua/windows, their keys in lua/lib/windows.lua. Every method raises StoreUnavailable when
Redis does not answer in time, and is safe to repeat.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tasks.base.errors import LeadLost
from tasks.records.batch import Batch
from tasks.records.ids import WINDOW
from tasks.records.job import Status
from tasks.records.window import (
    Advanced,
    Group,
    LiveWindow,
    NewWindow,
    Running,
    Standing,
    WindowClaim,
)
from tasks.store.database import Database
from tasks.store.jobs import ClaimRejection
from tasks.store.scripts import Argument, answering

SHOWN = ("id", "status", "preview", "count", "left", "attempts", "model", "worker")  # of a live window


class WindowStore:
    """Thread-safe; kept in a database. The heartbeat of windows is that of jobs, see JobStore."""

    def __init__(self, database: Database) -> None:
        self._settings = database.settings
        self._scripts, self._name = database.scripts, database.name
        self._redis, self._prefix = database.redis, database.prefix

    def of_batch(self, batch_id: str, most: int) -> tuple[list[LiveWindow], bool]:
        """Windows of a batch that have not ended, in the order of their first lines, and whether there are
        more than `most`.
        """
        with answering():
            live = self._redis.smembers(f"{self._prefix}batch:{batch_id}:live")
        ids = sorted(filter(WINDOW.matches, live), key=lambda name: int(name.rpartition("-")[2]))
        with answering(), self._redis.pipeline(transaction=False) as pipe:
            for window_id in ids[:most]:
                pipe.hmget(f"{self._prefix}win:{window_id}", SHOWN)
            records = pipe.execute()
        return [_live(*record) for record in records if record[0] is not None], len(ids) > most

    def running(self, batch_ids: Sequence[str]) -> dict[str, Running]:
        """What runs of each of these batches, as workers told it last, within a few seconds."""
        if not batch_ids:
            return {}
        answers = self._scripts.run("windows/running", *batch_ids)
        return {batch_id: Running(*told) for batch_id, told in zip(batch_ids, answers, strict=True)}

    def send(
        self,
        token: str,
        batch: Batch,
        after: tuple[int, int],
        windows: Sequence[NewWindow],
        model_queue: str = "",
    ) -> bool:
        """Queue the next lines of a batch as these windows, all for one model queue, and send their messages.

        after: chunk and offset behind them. False when there is nothing to send any more, or these were sent
        already. Raises LeadLost.
        """
        arguments = {
            "token": token,
            "id": batch.id,
            "chunk": batch.chunk,
            "offset": batch.offset,
            "next_chunk": after[0],
            "next_offset": after[1],
            "model_queue": model_queue,
            "models": [window.model for window in windows],
        }
        lines = (b"".join(window.lines) for window in windows)
        status = self._scripts.run("windows/send", arguments, *lines)
        if status == "lost":
            raise LeadLost
        return bool(status == "ok")

    def claim(
        self, window_id: str, worker: str, claim_id: str, model: str = ""
    ) -> WindowClaim | ClaimRejection:
        """Take a window for `worker`. claim_id is unique to this claim and makes repeating it safe.

        model: what the worker serves. A window for another model that is known waits for that one from then
        on.
        """
        arguments = {
            "id": window_id,
            "worker": worker,
            "holder": self._name,
            "claim_id": claim_id,
            "lease_ms": self._settings.lease_ms,
            "max_attempts": self._settings.max_attempts,
            "model": model,
        }
        answer = self._scripts.run("windows/claim", arguments)
        if answer[0] != "claimed":
            return ClaimRejection(answer[0])
        return _claim(window_id, *answer[1:])

    def advance(self, groups: Sequence[Group]) -> list[Advanced]:
        """Write the ends of lines and open others, of several windows in one round trip.

        Each group is one change. Of a batch that is ending no line is opened, and those that wait end here.
        """
        answers = self._scripts.run_each("windows/advance", [_advance(group) for group in groups])
        return [Advanced(Standing(standing), *numbers) for standing, *numbers in answers]

    def release(self, window_id: str, fencing_token: int) -> bool:
        """Queue again what has not ended of a running window, without counting an attempt.

        False: the claim is no longer ours, or its batch is ending.
        """
        return bool(self._scripts.run("windows/release", window_id, fencing_token) == 1)

    def split(self, window_id: str, fencing_token: int, start: int = 0) -> str | None:
        """Queue lines of a running window that are not open, from index `start` on, as a window of their own.

        Its id, or None: nothing was left to give, or the claim is no longer ours.
        """
        return self._scripts.run("windows/split", window_id, fencing_token, start) or None

    def end_queued(self, window_id: str) -> bool:
        """End a queued window of a batch that is ending. A worker that runs one hears it by its heartbeat."""
        return bool(self._scripts.run("windows/end_queued", window_id) == 1)


def _advance(group: Group) -> list[Argument]:
    """What advance.lua is told."""
    ends = group.ends
    arguments = {
        "id": group.window_id,
        "fencing_token": group.fencing_token,
        "group": group.number,
        "open": group.open_to,
        "ends": [end.index for end in ends],
        "statuses": Counter(end.status for end in ends),
        "codes": Counter(end.code for end in ends if end.code is not None),
        "cut": sum(end.cut for end in ends),
        "input_tokens": sum(end.input_tokens for end in ends),
        "cached_tokens": sum(end.cached_tokens for end in ends),
        "output_tokens": sum(end.output_tokens for end in ends),
        "set_aside": sum(end.max_tokens for end in ends),
        "running_lines": group.running.lines,
        "running_tokens": group.running.output_tokens,
    }
    return [arguments, *(end.entry for end in ends)]


def _live(
    window_id: str, status: str, lines: str, count: str, left: str, attempts: str, model: str, worker: str
) -> LiveWindow:
    """From the fields of SHOWN."""
    return LiveWindow(
        window_id,
        Status(status),
        lines,
        count=int(count),
        ended=int(count) - int(left),
        attempt=int(attempts) + 1,
        model=model or None,
        worker=worker or None,
    )


def _claim(window_id: str, head: str, lines: str) -> WindowClaim:
    """From what claim.lua returns."""
    fields: dict[str, Any] = json.loads(head)
    return WindowClaim(
        window_id=window_id,
        fencing_token=fields["fencing_token"],
        attempts=fields["attempts"],
        isolated=fields["isolated"],
        batch_id=fields["batch"],
        owner=fields["owner"],
        model=fields["model"] or None,
        deadline=int(fields["deadline"]) / 1000,
        created_at=fields["created_at"] / 1000,
        queued_at=fields["queued_at"] / 1000,
        claimed_at=fields["now"] / 1000,
        lines=tuple(lines[:-1].split("\n")),
    )
