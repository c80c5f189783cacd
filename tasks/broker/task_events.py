"""Task events for Flower from many threads at once, and across a restart of Redis, none of them lost.

Celery's dispatcher publishes what it has gathered and then empties the list. In the threads pool another
task may have ended meanwhile: its event was never sent, and Flower shows the task as started for ever
(celery issue 10434). An engine ends many requests in one step, so here this happened often. And after a lost
connection a new dispatcher takes over, while tasks under way go on with the old one (celery pull 10383).
"""

from __future__ import annotations

from typing import Any

from celery.app.events import Events
from celery.events.dispatcher import EventDispatcher


class WholeDispatcher(EventDispatcher):  # type: ignore[misc]  # Celery has no types
    """Takes out of its lists what it has published, and nothing else; hands the rest to its successor."""

    _successor: WholeDispatcher | None = None

    def send(self, type: str, *args: Any, **fields: Any) -> Any:
        """Send an event, or gather it for the next flush."""
        if self._successor is not None:
            return self._successor.send(type, *args, **fields)
        return super().send(type, *args, **fields)

    def flush(self, errors: bool = True, groups: bool = True) -> None:
        """Send what is gathered; what cannot be sent is kept for the next time."""
        with self.mutex:
            for _ in range(len(self._outbound_buffer) if errors else 0):
                event, routing_key, _cause = self._outbound_buffer.popleft()
                self._publish(event, self.producer, routing_key)
            for group, events in self._group_buffer.items() if groups else ():
                if batch := list(events):
                    self._publish(batch, self.producer, f"{group}.multi")
                    del events[: len(batch)]

    def extend_buffer(self, other: WholeDispatcher) -> None:
        """Take over from another, closed one, for good."""
        super().extend_buffer(other)
        other._successor = self
        for group, events in other._group_buffer.items():
            self._group_buffer[group] += events


class WholeEvents(Events):  # type: ignore[misc]
    """What Celery asks for a dispatcher."""

    dispatcher_cls = WholeDispatcher
