"""How many interactive jobs are sent before keys take turns."""

from __future__ import annotations

from tasks.batches.interactive_rooms import LEAST_ROOM, InteractiveRooms
from tasks.records.batch_work import Work
from tasks.store.workers import WorkerInfo


def worker(model: str, slots: int) -> WorkerInfo:
    return WorkerInfo(f"{model}:{slots}", model, 512, slots, 1, "h", 0.0)


def work(**sent: int) -> Work:
    return Work(
        0.0,
        {},
        {},
        [],
        [],
        interactive_in_flight={model_queue: {"o": count} for model_queue, count in sent.items()},
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_room_is_what_live_workers_can_take() -> None:
    rooms = InteractiveRooms()
    assert rooms.set([]) == {"": LEAST_ROOM}
    assert rooms.set([worker("a", 4), worker("a", 8), worker("b", 1)]) == {"": 16, "a": 15, "b": 1}
    assert (rooms.of("a"), rooms.of("none serves it"), rooms.of("")) == (15, 16, 16)
    assert rooms.set([worker("b", 1)]) == {"": 1, "b": 1}, "the others have gone"


def ended_each_round(ended: int, every_s: float, rounds: int = 100) -> int:
    """The room of one worker of four slots while so many jobs end between two rounds."""
    clock = Clock()
    rooms = InteractiveRooms(clock)
    for _ in range(rounds):
        rooms.set([worker("m", 4)])
        clock.now += every_s
        rooms.note({"m": 100}, work(m=100 - ended))
    return rooms.set([worker("m", 4)])["m"]


def test_short_jobs_have_room_for_what_runs_until_the_next_look() -> None:
    assert ended_each_round(4, 5.0) == 5, "jobs of five seconds that end together"
    assert ended_each_round(4, 1.0) == 5
    assert ended_each_round(20, 0.05) in (84, 85), "400 a second"


def test_the_room_of_short_jobs_ends_with_them() -> None:
    clock = Clock()
    rooms = InteractiveRooms(clock)
    for _ in range(20):
        clock.now += 0.05
        rooms.note({"m": 100}, work(m=50))
    assert rooms.set([worker("m", 4)])["m"] > 50
    clock.now += 20
    rooms.note({}, work(m=100))
    assert rooms.set([worker("m", 4)]) == {"": 5, "m": 5}
