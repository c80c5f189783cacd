"""Task events for Flower from many threads at once, none of them lost.

Celery's dispatcher publishes what it has gathered and then empties the list. In the threads pool another
task may have ended meanwhile: its event was never sent, and Flower shows the task as started for ever
(celery issue 10434). An engine ends many requests in one step, so here this happened often.
"""

from __future__ import annotations

from celery.app.events import Events
from celery.events.dispatcher import EventDispatcher


class WholeDispatcher(EventDispatcher):  # type: ignore[misc]  # Celery has no types
    """Takes out of its list what it has published, and nothing else."""

    def flush(self, errors: bool = True, groups: bool = True) -> None:
        """Send what is gathered."""
        super().flush(errors=errors, groups=False)
        if not groups:
            return
        with self.mutex:
            for group, events in self._group_buffer.items():
                if batch := list(events):
                    self._publish(batch, self.producer, f"{group}.multi")
                    del events[: len(batch)]


class WholeEvents(Events):  # type: ignore[misc]
    """What Celery asks for a dispatcher."""

    dispatcher_cls = WholeDispatcher
