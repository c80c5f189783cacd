"""The bound on the jobs that a model worker has read: those whose message came, and those that run."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tasks.worker.intake import JobIntake


def test_no_more_jobs_are_wanted_than_run_at_once() -> None:
    intake = JobIntake(2)
    assert intake.wants()
    intake.arrived("a")
    assert intake.wants()
    intake.arrived("b")
    assert not intake.wants(), "read, though neither has begun"
    with ExitStack() as running:
        running.enter_context(intake.running("a"))
        running.enter_context(intake.running("b"))
        assert not intake.wants(), "begun, and counted once"
    assert intake.wants()


def test_a_job_that_fails_makes_place_for_another() -> None:
    intake = JobIntake(1)
    intake.arrived("a")
    with pytest.raises(RuntimeError), intake.running("a"):
        raise RuntimeError
    assert intake.wants()


def test_a_message_that_comes_twice_is_one_job() -> None:
    intake = JobIntake(2)
    intake.arrived("a")
    intake.arrived("a")
    assert intake.wants()


def test_a_lost_connection_frees_the_places_of_jobs_that_did_not_begin() -> None:
    intake = JobIntake(2)
    with intake.running("a"):
        intake.arrived("b")
        assert not intake.wants()
        intake.reconnected()
        assert intake.wants(), "b comes again"
        intake.arrived("b")
        assert not intake.wants(), "a runs on"


def test_a_message_that_celery_refuses_takes_a_place_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    intake = JobIntake(1)
    intake.arrived("refused")
    assert not intake.wants()
    monkeypatch.setattr("tasks.worker.intake.BEGIN_S", 0.0)
    assert intake.wants()
