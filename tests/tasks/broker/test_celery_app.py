"""The order of the queues, and what is shown of a prompt."""

from __future__ import annotations

import pytest

from tasks.base.queue_names import IO_QUEUE, QUEUES, queue_of
from tasks.base.settings import Settings
from tasks.broker.celery_app import IN_A_ROW, InteractiveFirst, make_app
from tasks.records.job import PREVIEW_CHARS, Priority, preview, prompt_size


def test_interactive_is_polled_first() -> None:
    bulk, interactive = QUEUES[Priority.BULK], QUEUES[Priority.INTERACTIVE]
    cycle = InteractiveFirst()
    for names in ([bulk, interactive], [interactive, bulk], [IO_QUEUE, bulk, interactive]):
        cycle.update(names)
        for _ in range(2):
            assert list(cycle.consume(len(names)))[:2] == [interactive, bulk]
            cycle.rotate(interactive)


def test_after_many_interactive_messages_a_bulk_one_is_polled_first() -> None:
    bulk, interactive = QUEUES[Priority.BULK], QUEUES[Priority.INTERACTIVE]
    cycle = InteractiveFirst()
    cycle.update([bulk, interactive])
    for _ in range(2):
        for _ in range(IN_A_ROW):
            assert list(cycle.consume(2)) == [interactive, bulk]
            cycle.rotate(interactive)
        assert list(cycle.consume(2)) == [bulk, interactive]
        cycle.rotate(interactive)
        assert list(cycle.consume(2)) == [bulk, interactive], "until there was one"
        cycle.rotate(bulk)


def test_bulk_jobs_and_windows_take_turns() -> None:
    names = [queue_of(kind, model) for kind in QUEUES for model in ("", "a")]
    cycle = InteractiveFirst()
    cycle.update(names[::-1])
    used = []
    for _ in range(8):
        order = list(cycle.consume(len(names)))
        assert set(order[:2]) == {queue_of(Priority.INTERACTIVE, model) for model in ("", "a")}
        used.append(order[2])
        cycle.rotate(order[2])
    assert sorted(used[:4]) == sorted(used[4:]) == sorted(names[2:]), "each has its turn"


def test_windows_and_jobs_are_polled_only_if_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*(queue_of(kind, model) for kind in QUEUES for model in ("", "a")), IO_QUEUE]
    cycle = InteractiveFirst()
    cycle.update(names)
    monkeypatch.setattr(InteractiveFirst, "wants_windows", staticmethod(lambda: False))
    assert list(cycle.consume(len(names))) == [*names[:4], IO_QUEUE]
    monkeypatch.setattr(InteractiveFirst, "wants_jobs", staticmethod(lambda: False))
    assert list(cycle.consume(len(names))) == []
    monkeypatch.setattr(InteractiveFirst, "wants_windows", staticmethod(lambda: True))
    assert list(cycle.consume(len(names))) == names[4:6]
    monkeypatch.undo()
    assert list(cycle.consume(len(names))) == names


def test_models_take_turns_behind_which_no_bulk_job_overtakes_an_interactive_one() -> None:
    names = [queue_of(priority, model) for priority in Priority for model in ("", "a", "b")]
    interactive = [name for name in names if "interactive" in name]
    cycle = InteractiveFirst()
    cycle.update(names[::-1])
    used = []
    for _ in range(6):
        order = list(cycle.consume(len(names)))
        assert set(order[:3]) == set(interactive)
        used.append(order[0])
        cycle.rotate(order[0])
    assert sorted(used[:3]) == sorted(used[3:]) == sorted(interactive), "each has its turn"


def test_no_two_models_share_a_queue() -> None:
    models = ["", "a", "A", "a.b", "a b", "a%20b", "a,b", "é", "\n", "x" * 300, "x" * 299 + "y", "é" * 100]
    names = {queue_of(kind, model) for kind in QUEUES for model in models}
    assert len(names) == len(QUEUES) * len(models)
    for name in names:
        assert name.isascii()
        assert not set(name) & set(" ,\n"), "Celery's -Q takes names between commas"
    assert queue_of(Priority.BULK, "smollm2.q4_1") == "medusaq.bulk.smollm2.q4_1"


def test_flower_is_told_the_size_of_a_prompt() -> None:
    assert prompt_size({"prompt": "é" * 1234}) == "1,234 chars"
    messages = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": None}, {"content": "de"}]
    assert prompt_size({"messages": messages}) == "5 chars"


def test_preview() -> None:
    assert preview({"prompt": " two\n lines "}) == "two lines"
    assert preview({"prompt": "\x1b[1mé\u202e"}) == "\ufffd[1mé\ufffd"
    assert preview({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}) == "b"
    long = preview({"prompt": "x" * 1000})
    assert len(long) == PREVIEW_CHARS
    assert long.endswith("\u2026")


def test_after_a_lost_connection_as_many_messages_are_read_as_before() -> None:
    """Celery would read one message for each piece of old work that ends; we bound jobs and windows."""
    app = make_app(Settings(_env_file=None))  # type: ignore[call-arg]  # pydantic
    assert app.conf.worker_enable_prefetch_count_reduction is False
    app.close()
