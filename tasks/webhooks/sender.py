"""Delivers webhooks from the outbox, many at once. Several io workers may run a sender.

A sender takes a delivery with a fencing token and a lease that is longer than an attempt, so one sender at a
time has it. If that is killed, another one sends the delivery again under the same webhook-id. The times of
retries are in Redis, so that no restart loses one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import h11
import httpx
import prometheus_client
import redis

from tasks.base.errors import AddressBusy, StoreUnavailable, TargetRefused
from tasks.base.settings import Settings
from tasks.base.telemetry.metrics import REGISTRY
from tasks.records.webhook import DeliveryStatus, Target, signed, target_of
from tasks.store.database import Database
from tasks.webhooks.connection_slots import AddressSlots
from tasks.webhooks.ssrf_guard import Guard
from tasks.webhooks.store import Attempt, DeliveryStore, Due, Schedule
from tasks.webhooks.transport import FAILURES, NO_CONNECTION, Answer, post

log = logging.getLogger(__name__)

MOST_AT_ONCE = 256  # deliveries in flight; a single owner gets 29: tasks/webhooks/connection_slots.py
MOST_TO_ONE = 12  # deliveries in flight to one host on all its ports; a single owner gets 4
MOST_ADDRESSES = 4  # addresses of a name that are tried
MOST_TAKEN = 32  # deliveries taken from the outbox at a time
STORE_THREADS = 4
IDLE_S = 1.0  # longest time between two polls of the outbox
RETRY_S = 1.0  # pause after an error of Redis
DRAIN_S = 3.0  # time that deliveries in flight have to end when the worker stops
JITTER = 0.1  # largest fraction added to a pause: receivers that were down are not all tried at once
LONGEST_WAIT_S = 24 * 3600.0  # longest pause that Retry-After can request
ERROR_CHARS = 200  # stored characters of an error: a receiver must not fill Redis

ATTEMPTS = prometheus_client.Counter(
    "medusaq_webhook_attempts",
    "Attempts to deliver a webhook, by what became of the delivery: pending is tried again",
    ["status"],
    registry=REGISTRY,
)
for _status in DeliveryStatus:  # so that the series exist before the first attempt
    ATTEMPTS.labels(_status.value)

T = TypeVar("T")


class WebhookSender:
    """The io worker calls start() and stop() once each."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        guard: Guard | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self._database = database
        self._deliveries = DeliveryStore(database, settings, schedule)
        self._schedule = self._deliveries.schedule
        self._guard = guard or Guard.of(settings)
        self._tls = httpx.create_ssl_context()
        self._tls.set_alpn_protocols(["http/1.1"])
        self._calls = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="webhook-store")
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._over = asyncio.Event()
        self._pubsub: redis.client.PubSub | None = None
        self._stopping = threading.Event()
        self._slots = AddressSlots()
        self._changed = threading.Condition()  # guards these two
        self._held: Counter[tuple[str, str]] = Counter()  # deliveries under way, by owner and host
        self._in_flight: set[Future[Any]] = set()
        self._taking = threading.Thread(target=self._take, name="webhooks", daemon=True)
        self._sending = threading.Thread(target=self._send, name="webhook-io", daemon=True)

    def start(self) -> None:
        self._sending.start()
        self._taking.start()

    def stop(self) -> None:
        """Wait up to DRAIN_S for deliveries in flight; another sender sends the rest again."""
        self._stopping.set()
        self._taking.join()
        wait(self._in_flight_now(), DRAIN_S)
        self._loop.call_soon_threadsafe(self._over.set)
        self._sending.join()
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _send(self) -> None:
        with self._runner:  # at the end it cancels the deliveries that are still in flight
            self._runner.run(self._over.wait())

    # What is due

    def _take(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._changed:
                    free, held = MOST_AT_ONCE - len(self._in_flight), dict(self._held)
                    if free <= 0:
                        self._changed.wait(IDLE_S)
                        continue
                due, next_s = self._deliveries.take(MOST_TAKEN, free, MOST_TO_ONE, held)
                for one in due:
                    self._begin(one)
                if not due:
                    self._wait(IDLE_S if next_s is None else min(next_s, IDLE_S))
            except StoreUnavailable as error:
                log.warning("webhooks wait: %s", error)
                self._stopping.wait(RETRY_S)
            except Exception:
                log.exception("taking deliveries from the outbox of webhooks failed")
                self._stopping.wait(RETRY_S)
        if self._pubsub is not None:
            self._pubsub.close()

    def _wait(self, seconds: float) -> None:
        """Wait until a delivery is put into the outbox, at most this long."""
        try:
            if self._pubsub is None:
                self._pubsub = self._database.redis.pubsub(ignore_subscribe_messages=True)
                self._pubsub.subscribe(f"{self._database.prefix}hooks")
                return  # deliveries that came before the subscription are taken first
            self._pubsub.get_message(timeout=seconds)
            while self._pubsub.get_message(timeout=0):
                pass
        except redis.RedisError as error:
            log.debug("webhooks: %s", error)
            if self._pubsub is not None:
                self._pubsub.close()
            self._pubsub = None
            self._stopping.wait(seconds)

    def _begin(self, due: Due) -> None:
        with self._changed:
            future = asyncio.run_coroutine_threadsafe(self._deliver(due), self._loop)
            self._count(future, due)

    def _count(self, future: Future[Any], due: Due) -> None:
        """Count the future as in flight, for its owner and host, until it is done."""
        with self._changed:
            self._held[due.owner, due.host] += 1
            self._in_flight.add(future)
        future.add_done_callback(lambda _: self._ended(future, due))

    def _ended(self, future: Future[Any], due: Due) -> None:
        with self._changed:
            self._in_flight.discard(future)
            self._held[due.owner, due.host] -= 1
            if not self._held[due.owner, due.host]:
                del self._held[due.owner, due.host]
            self._changed.notify_all()

    def _in_flight_now(self) -> list[Future[Any]]:
        with self._changed:
            return list(self._in_flight)

    # One delivery

    async def _deliver(self, due: Due) -> None:
        until = time.monotonic() + self._schedule.lease_s
        try:
            attempt = await self._attempt(due)
            status, delay_s = outcome(attempt, due.tries, self._schedule.retries_s)
            ATTEMPTS.labels(status.value).inc()
            while not await self._noted(due, attempt, status, delay_s):
                if time.monotonic() > until:
                    log.warning("%s: the result of attempt %d cannot be stored", due.id, due.number)
                    return
                await asyncio.sleep(RETRY_S)
        except StoreUnavailable as error:
            log.warning("%s waits: %s", due.id, error)
        except Exception:
            log.exception("%s: attempt %d failed", due.id, due.number)

    async def _attempt(self, due: Due) -> Attempt:
        """Raises StoreUnavailable; nothing was sent then."""
        status_code = error = retry_after_s = None
        target, limit_s = target_of(due.url), self._schedule.timeout_s
        keys = await self._keys(due.owner, self._schedule.lease_s - limit_s)
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                addresses = await self._resolved(due, target)
                headers = signed(due.id, int(due.at), due.body, keys)
                answer = await self._posted(due, target, addresses[:MOST_ADDRESSES], headers)
            status_code, retry_after_s = answer.status_code, answer.retry_after_s
        except TimeoutError:
            error = f"no answer within {limit_s:g} s"
        except (TargetRefused, AddressBusy) as refused:
            error = str(refused)
        except h11.ProtocolError:  # not its message, which may quote a server inside our network
            error = "the response is not valid HTTP, or incomplete"
        except FAILURES as failure:
            error = str(failure) or type(failure).__name__
        except Exception:  # without a stored result the delivery would be sent again without end
            log.exception("%s: attempt %d", due.id, due.number)
            error = "an internal error, which the log of the io worker describes"
        return Attempt(time.monotonic() - began, status_code, error and error[:ERROR_CHARS], retry_after_s)

    async def _keys(self, owner: str, within_s: float) -> list[str]:
        """The signing keys. The timeout leaves time for an attempt before the lease ends."""
        try:
            async with asyncio.timeout(within_s):
                return await self._in(self._calls, lambda: self._deliveries.signing_keys(owner))
        except TimeoutError:
            raise StoreUnavailable(f"Redis did not return the signing keys within {within_s:g} s") from None

    async def _resolved(self, due: Due, target: Target) -> list[str]:
        """Resolve the target's name on a thread, and check its addresses.

        Only the system's resolver knows /etc/hosts, search domains and other sources of names. It has no
        timeout. A look-up whose attempt has timed out therefore counts as in flight until it returns, which
        limits the threads of an owner. They are daemons: the process exits without waiting for a name server.
        """
        looking: Future[list[str]] = Future()
        looking.set_running_or_notify_cancel()

        def look() -> None:
            try:
                looking.set_result(self._guard.addresses(target.host, target.port))
            except BaseException as error:
                looking.set_exception(error)

        threading.Thread(target=look, name="webhook-name", daemon=True).start()
        try:
            return await asyncio.wrap_future(looking)
        except asyncio.CancelledError:
            self._count(looking, due)
            raise

    async def _posted(
        self, due: Due, target: Target, addresses: Sequence[str], headers: Mapping[str, str]
    ) -> Answer:
        """The response of the first address that accepts a connection."""
        wait_s = self._schedule.timeout_s / 2
        *others, last = addresses
        for address in others:
            with contextlib.suppress(*NO_CONNECTION):
                async with self._slots.held(due.owner, address, wait_s):
                    return await post(target, address, due.body, headers, self._tls)
        async with self._slots.held(due.owner, last, wait_s):
            return await post(target, last, due.body, headers, self._tls)

    async def _noted(self, due: Due, attempt: Attempt, status: DeliveryStatus, delay_s: float) -> bool:
        try:
            ours = await self._in(self._calls, lambda: self._deliveries.done(due, attempt, status, delay_s))
        except StoreUnavailable as error:
            log.warning("%s: %s", due.id, error)
            return False
        if not ours:
            log.warning(
                "%s: the result of attempt %d was stored before, or another sender has the delivery",
                due.id,
                due.number,
            )
        return True

    async def _in(self, threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(threads, call)


def outcome(attempt: Attempt, tries: int, retries_s: Sequence[float]) -> tuple[DeliveryStatus, float]:
    """The state of a delivery after this many tries, and the seconds until the next one."""
    code = attempt.status_code or 0
    if 200 <= code < 300:
        return DeliveryStatus.DELIVERED, 0.0
    if code == 410:
        return DeliveryStatus.DISABLED, 0.0
    if tries > len(retries_s):
        return DeliveryStatus.FAILED, 0.0
    planned = retries_s[tries - 1] * (1 + random.uniform(0, JITTER))
    return DeliveryStatus.PENDING, max(planned, min(attempt.retry_after_s or 0.0, LONGEST_WAIT_S))
