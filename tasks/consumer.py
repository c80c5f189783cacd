"""A Celery consumer that wakes its event loop when a task thread has something for it, and keeps secrets.

In the threads pool an acknowledgement is put on the loop's list by the task's thread, but the loop
sleeps on its sockets for up to a second before it looks there; until then the finished task still
holds its place in the prefetch window and no next message is read. A pipe ends that sleep.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from celery.worker.consumer import Consumer

REFUSED_S = 1.0  # between attempts to go on with a broker that answers, and refuses
PIPE_READ = 4096  # bytes; every waiting wake-up in one read
# What a worker tells of its broker. The rest, which Celery would tell too, has the passwords of Sentinels.
TOLD = ("transport", "hostname", "port", "userid", "virtual_host", "connect_timeout", "heartbeat")


class WakingConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """The stock consumer plus the pipe."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]
        """Its parts, as Flower lists them."""

        def info(self, parent: Any) -> dict[str, Any]:
            told: dict[str, Any] = super().info(parent)
            broker = told["broker"]
            if isinstance(broker, dict):  # else there is no connection
                told["broker"] = {name: broker[name] for name in TOLD}
            return told

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        super().__init__(*args, **kwargs)

    def wake(self) -> None:
        """End the loop's sleep; callable from any thread and from a signal handler."""
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes it as well
            os.write(self._wake_write, b"\0")

    def call_soon(self, p: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().call_soon(p, *args, **kwargs)
        self.wake()
        return result

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        super().on_connection_error_before_connected(exc)
        self._rest_if_refused(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        super().on_connection_error_after_connected(exc)
        self._rest_if_refused(exc)

    def _rest_if_refused(self, exc: Exception) -> None:
        """A new connection comes at once, and so would the next refusal."""
        if isinstance(exc, self.channel_errors):
            time.sleep(REFUSED_S)

    def on_send_event_buffered(self) -> None:
        super().on_send_event_buffered()
        self.wake()

    def register_with_event_loop(self, hub: Any) -> None:
        super().register_with_event_loop(hub)
        hub.add_reader(self._wake_read, self._drain)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, PIPE_READ)
