"""A Celery consumer whose event loop can be woken by task threads, and which reports no passwords.

In the threads pool the task's thread puts an acknowledgement on the loop's list, but the loop sleeps on its
sockets for up to a second before it reads the list; until then the finished task still holds its place in the
prefetch window and no next message is read. A pipe ends that sleep.

Redis responds to a request for a message within a second, with a message or without, but kombu waits for the
response without a limit. Here a connection with an overdue response counts as lost, too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Callable
from typing import Any, ClassVar

from celery.worker.consumer import Consumer

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between checks for an overdue response
REFUSED_S = 1.0  # between connections to a broker that responds with errors
EVENTS_S = 0.1  # between messages of task events: Celery sends one for nearly every event
PIPE_READ = 4096  # bytes; every waiting wake-up in one read
# Fields of the broker that a worker reports. The others, which Celery reports too, hold Sentinels' passwords.
BROKER_FIELDS = ("transport", "hostname", "port", "userid", "virtual_host", "connect_timeout", "heartbeat")


class WakingConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Celery's consumer with the pipe, and with a new connection after an overdue response.

    connected: called at each connection. arrived: at each message, with its task and id, before the next
    message is asked for.
    """

    connected: ClassVar[staticmethod[[], object]] = staticmethod(lambda: None)
    arrived: ClassVar[staticmethod[[Any, Any], object]] = staticmethod(lambda *_: None)

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]
        """The consumer's components. info() is what Flower shows."""

        def info(self, parent: Any) -> dict[str, Any]:
            info: dict[str, Any] = super().info(parent)
            broker = info["broker"]
            if isinstance(broker, dict):  # else there is no connection
                info["broker"] = {name: broker[name] for name in BROKER_FIELDS}
            return info

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._flushes_soon = False  # the task events
        super().__init__(*args, **kwargs)

    def wake(self) -> None:
        """End the loop's sleep; callable from any thread and from a signal handler."""
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes it as well
            os.write(self._wake_write, b"\0")

    def call_soon(self, p: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().call_soon(p, *args, **kwargs)
        self.wake()
        return result

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        received: Callable[[Any], Any] = super().create_task_handler(*args, **kwargs)
        self.connected()

        def on_task_received(message: Any) -> Any:
            headers = message.headers or {}  # a message that Celery refuses may have none
            self.arrived(headers.get("task"), headers.get("id"))
            return received(message)

        return on_task_received

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        super().on_connection_error_before_connected(exc)
        self._rest_if_refused(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        super().on_connection_error_after_connected(exc)
        self._rest_if_refused(exc)

    def _rest_if_refused(self, exc: Exception) -> None:
        """Pause after an error response: without it the next connection and its error follow at once."""
        if isinstance(exc, self.channel_errors):
            time.sleep(REFUSED_S)

    def on_send_event_buffered(self) -> None:
        if self.hub and not self._flushes_soon:
            self._flushes_soon = True
            self.call_soon(self.hub.call_later, EVENTS_S, self._flush_events)

    def _flush_events(self) -> None:
        self._flushes_soon = False  # before, as threads add events meanwhile
        super()._flush_events()

    def shutdown(self) -> None:
        self._flush_events()  # of tasks that ended after the loop
        super().shutdown()

    def register_with_event_loop(self, hub: Any) -> None:
        super().register_with_event_loop(hub)
        self._flush_events()  # those of the connection before, whose timers are gone
        hub.add_reader(self._wake_read, self._drain)
        hub.call_repeatedly(LOOK_S, self._check_answer)

    def _check_answer(self) -> None:
        """Raises OSError, which makes the consumer connect again, if a response of Redis is overdue."""
        silent_s = overdue_s(self.task_consumer.channel)
        if silent_s is not None:
            raise TimeoutError(f"the broker has not responded for {silent_s:.0f} s")

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, PIPE_READ)


def overdue_s(channel: Any) -> float | None:
    """Seconds that kombu's Redis channel has waited for an overdue response; None if none is overdue.

    It polls the socket: redis-py's can_read() would read the data, and the event loop, which waits for the
    socket, would not notice it.
    """
    waiting_on = channel._in_poll
    if not waiting_on:
        return None
    silent_s: float = time.monotonic() - channel._queue_cycle.asked_at
    if silent_s <= channel.brpop_timeout + channel.socket_timeout:
        return None
    socket = select.poll()
    socket.register(waiting_on._sock, select.POLLIN)
    return None if socket.poll(0) else silent_s
