"""The events that Flower lives on, sent from many threads at once through a real broker."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import Any

from tasks.events import WholeDispatcher
from tasks.queues import make_app
from tasks.settings import Settings

THREADS, EACH = 4, 250


def test_events_sent_while_others_are_published_are_not_lost(settings: Settings) -> None:
    app = make_app(settings)
    received: Counter[str] = Counter()

    def note(event: dict[str, Any]) -> None:
        received[event["uuid"]] += 1

    with app.connection_for_read() as reading, app.connection_for_write() as writing:
        receiver = app.events.Receiver(reading, handlers={"task-succeeded": note})
        with receiver.consumer_context() as (own, _channel, _consumers):
            with contextlib.suppress(TimeoutError):
                own.drain_events(timeout=0.2)  # subscribes
            dispatcher = app.events.Dispatcher(writing, hostname="w", buffer_group=["task"])
            assert isinstance(dispatcher, WholeDispatcher)

            def end_tasks(thread: int) -> None:
                for number in range(EACH):
                    dispatcher.send("task-succeeded", uuid=f"{thread}-{number}")

            threads = [threading.Thread(target=end_tasks, args=(n,)) for n in range(THREADS)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                dispatcher.flush()
            dispatcher.flush()
            with contextlib.suppress(TimeoutError):
                while len(received) < THREADS * EACH:
                    own.drain_events(timeout=5)
    assert len(received) == THREADS * EACH
    assert set(received.values()) == {1}
