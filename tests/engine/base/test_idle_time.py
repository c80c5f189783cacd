"""Idle time that one thread gives and another uses, a piece at a time."""

from __future__ import annotations

import threading

import pytest

from engine.host.idle_time import IdleTime, Stopped
from tests.support.workers import wait_until


class Worker(threading.Thread):
    """Runs pieces that end when they are let."""

    def __init__(self, idle_time: IdleTime) -> None:
        super().__init__(daemon=True)
        self._idle_time = idle_time
        self.begun, self.end = threading.Semaphore(0), threading.Semaphore(0)
        self.pieces = 0
        self.stopped = False
        self.start()

    def run(self) -> None:
        try:
            while True:
                with self._idle_time.piece():
                    self.pieces += 1
                    self.begun.release()
                    assert self.end.acquire(timeout=60)
        except Stopped:
            self.stopped = True


def test_pieces_begin_in_idle_time_alone() -> None:
    idle_time = IdleTime()
    worker = Worker(idle_time)
    assert not worker.begun.acquire(timeout=0.05)
    with idle_time.given():
        for _ in range(3):
            assert worker.begun.acquire(timeout=60)
            worker.end.release()
        assert worker.begun.acquire(timeout=60)
        threading.Timer(0.05, worker.end.release).start()
    pieces = worker.pieces
    assert not worker.begun.acquire(timeout=0.05), "the fourth has ended, and no other has begun"
    assert pieces == worker.pieces == 4
    with idle_time.given():
        assert worker.begun.acquire(timeout=60)
        worker.end.release()
    idle_time.close()
    worker.join(60)
    assert worker.stopped


def test_a_piece_at_a_time_is_lent_and_waited_for() -> None:
    idle_time = IdleTime()
    idle_time.lend()  # nobody wants it
    worker = Worker(idle_time)
    for pieces in (1, 2):
        wait_until(lambda: idle_time._wanted > 0)
        threading.Timer(0.05, worker.end.release).start()
        idle_time.lend()
        assert worker.pieces == pieces
        assert not idle_time._used
    idle_time.close()
    worker.join(60)
    assert (worker.pieces, worker.stopped) == (2, True)


def test_nothing_begins_once_it_is_closed() -> None:
    idle_time = IdleTime()
    idle_time.close()
    with idle_time.given(), pytest.raises(Stopped), idle_time.piece():
        pytest.fail("a piece began")


def test_a_piece_that_fails_is_over() -> None:
    idle_time = IdleTime()

    def fail() -> None:
        with pytest.raises(ZeroDivisionError), idle_time.piece():
            raise ZeroDivisionError

    failing = threading.Thread(target=fail)
    with idle_time.given():
        failing.start()
        failing.join(60)
