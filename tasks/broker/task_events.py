"""Task events for Flower, none of which is lost with many threads or across a restart of Redis.

Celery's dispatcher publishes its buffer and then empties it. In the threads pool another task may end in
between: its event is never sent, and Flower shows the task as started forever (celery issue 10434). An engine
ends many requests in one step, so it happens often here. After a lost connection a new dispatcher takes over,
while running tasks still use the old one (celery pull 10383).
"""

from __future__ import annotations

from typing import Any

from celery.app.events import Events
from celery.events.dispatcher import EventDispatcher

MOST_EVENTS = 200  # in one message; some 100 kB


class WholeDispatcher(EventDispatcher):  # type: ignore[misc]  # Celery has no types
    """Removes only published events from its buffers, and passes the rest to its successor."""

    _successor: WholeDispatcher | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, buffer_limit=MOST_EVENTS, **kwargs)

    def send(self, type: str, *args: Any, **fields: Any) -> Any:
        """Send an event, or buffer it for the next flush."""
        if self._successor is not None:
            return self._successor.send(type, *args, **fields)
        return super().send(type, *args, **fields)

    def flush(self, errors: bool = True, groups: bool = True) -> None:
        """Send the buffered events; those that cannot be sent are kept for the next flush."""
        with self.mutex:
            for _ in range(len(self._outbound_buffer) if errors else 0):
                event, routing_key, _cause = self._outbound_buffer.popleft()
                self._publish(event, self.producer, routing_key)
            for group, events in self._group_buffer.items() if groups else ():
                if batch := list(events):
                    self._publish(batch, self.producer, f"{group}.multi")
                    del events[: len(batch)]

    def extend_buffer(self, other: WholeDispatcher) -> None:
        """Take over the events of a closed dispatcher, now and later."""
        super().extend_buffer(other)
        other._successor = self
        for group, events in other._group_buffer.items():
            self._group_buffer[group] += events


class WholeEvents(Events):  # type: ignore[misc]
    """Makes Celery use WholeDispatcher."""

    dispatcher_cls = WholeDispatcher
