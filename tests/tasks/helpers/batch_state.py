"""What can be told of a batch, its two jobs and the io workers that may lead, between two steps."""

from __future__ import annotations

from typing import NamedTuple

from tests.tasks.helpers.explorer import Keys

BATCH, OWNER = "batch_1", "key_o"
JOBS = ("j1", "j2")  # of the lines 1 and 2
LEADERS = ("x", "y")


class Leader(NamedTuple):
    """What an io worker remembers: what is to be done by what it saw, or a part that is not counted yet.

    todo: "send" with the place of the next line, or "cancel", "finalise" and "finish", with 0. part: its
    number, and the jobs whose results it has.
    """

    todo: tuple[str, int] | None = None
    how: str = ""  # the batch ends, when it does
    part: tuple[int, tuple[str, ...]] | None = None

    @classmethod
    def seeing(cls, chunk: int, place: int, ending: str, unfinished: int) -> Leader:
        """unfinished: jobs that live, and results that are not collected."""
        todo: tuple[str, int] | None = None
        if not chunk and not ending:
            todo = "send", place
        elif not unfinished:
            todo = "finalise", 0
        elif ending:
            todo = "cancel", 0
        return cls(todo, ending or "completed") if todo else cls()


class State(NamedTuple):
    """held, stale: fences of each job's holder, and of one that lost it. parts: jobs in what was counted."""

    keys: Keys
    leaders: tuple[Leader, Leader] = (Leader(), Leader())
    held: tuple[int, int] = (0, 0)
    stale: tuple[int, int] = (0, 0)
    parts: tuple[str, ...] = ()

    @property
    def batch(self) -> dict[str, str]:
        """Empty once it was deleted."""
        record: dict[str, str] = self.keys.get(f"hash batch:{BATCH}", {})
        return record

    def status(self, job: str) -> str | None:
        record = self.keys.get(f"hash job:{job}")
        return None if record is None else record["status"]

    def with_leader(self, index: int, leader: Leader) -> State:
        leaders = list(self.leaders)
        leaders[index] = leader
        return self._replace(leaders=tuple(leaders))

    def with_fences(self, number: int, held: int, stale: int) -> State:
        """Of the first job alone one that lost it is remembered."""
        stale = stale if number == 0 else 0
        both = list(self.held), list(self.stale)
        both[0][number], both[1][number] = held, stale
        return self._replace(held=tuple(both[0]), stale=tuple(both[1]))
