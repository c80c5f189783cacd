"""Receivers and name servers that hang or flood: each attempt ends in time, and delays no other owner."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from tasks.base.settings import Settings
from tasks.records.webhook import DeliveryStatus
from tasks.store.jobs import JobStore
from tasks.webhooks import connection_slots
from tasks.webhooks import sender as webhook_sender
from tasks.webhooks import transport as webhook_post
from tasks.webhooks.connection_slots import EIGHTH, HALF, network, share
from tasks.webhooks.ssrf_guard import Guard
from tasks.webhooks.store import Delivery, DeliveryStore, Schedule
from tests.support.peers.nameservers import SilentNameServer
from tests.support.peers.receivers import LOOPBACK, Receiver, Speaking, receiving
from tests.support.servers import RedisServer, fast_settings
from tests.support.tuned import constants
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.outbox import SOON, Start, queue_delivery

pytestmark = pytest.mark.slow

LONG_S = 60.0  # of an attempt, where one that lasts so long would fail the test
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
GOOD = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, webhook_allow=LOOPBACK)


@pytest.fixture
def schedule() -> Schedule:
    return replace(SOON, timeout_s=1.0, retries_s=())


def over(outbox: DeliveryStore, delivery_id: str, owner: str, timeout_s: float = 20.0) -> Delivery:
    def ended() -> bool:
        return outbox.get(delivery_id, owner).status is not DeliveryStatus.PENDING

    wait_until(ended, timeout_s)
    return outbox.get(delivery_id, owner)


@contextmanager
def honest(store: JobStore, outbox: DeliveryStore) -> Iterator[Callable[[], None]]:
    """Call it to have one more webhook of another owner delivered, to a host of its own."""
    with receiving(host="127.9.9.9") as receiver:

        def deliver() -> None:
            delivered = over(outbox, queue_delivery(store, receiver.url, owner="honest"), "honest")
            assert delivered.status is DeliveryStatus.DELIVERED

        yield deliver


def flood(connection: socket.socket, what: bytes = INTERIM) -> None:
    with closing(connection), suppress(OSError):
        connection.recv(65536)
        while True:
            connection.sendall(what * 10_000)


def test_endless_interim_answers_hold_up_nobody(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    start(timeout_s=LONG_S)
    with ExitStack() as stack, honest(store, outbox) as deliver:
        urls = [stack.enter_context(Speaking(flood)) for _ in range(32)]
        floods = [queue_delivery(store, url, owner="hostile") for url in urls]
        deliver()
        for delivery_id in floods:
            [attempt] = over(outbox, delivery_id, "hostile").attempts
            assert attempt["error"] == f"more than {webhook_post.INTERIM_ANSWERS} interim answers (1xx)"
            assert attempt["duration_s"] < LONG_S / 2


@pytest.mark.parametrize("interim", [0, 1, webhook_post.INTERIM_ANSWERS])
def test_an_answer_after_interim_ones_counts(
    store: JobStore, outbox: DeliveryStore, start: Start, interim: int
) -> None:
    start(timeout_s=LONG_S)

    def say(connection: socket.socket) -> None:
        with closing(connection):
            connection.recv(65536)
            connection.sendall(INTERIM * interim + GOOD)

    with Speaking(say) as url:
        assert over(outbox, queue_delivery(store, url), "me").status is DeliveryStatus.DELIVERED


@pytest.mark.parametrize(
    "head",
    [
        b"x: " + b"y" * webhook_post.HEAD_BYTES,
        b"x: y\r\n" * (webhook_post.HEAD_BYTES // 6),
        (b"x: " + b"y" * 2000 + b"\r\n\r\n" + b"HTTP/1.1 100 Continue\r\n") * 10,
    ],
    ids=["one long field", "many fields", "interim answers with long heads"],
)
def test_a_long_head_is_refused(store: JobStore, outbox: DeliveryStore, start: Start, head: bytes) -> None:
    start(timeout_s=LONG_S)

    def say(connection: socket.socket) -> None:
        with closing(connection):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 100 Continue\r\n" + head)
            connection.recv(1)  # until the sender leaves

    with Speaking(say) as url:
        [attempt] = over(outbox, queue_delivery(store, url), "me").attempts
        assert attempt["status_code"] is None
        assert attempt["error"] == f"the head of the answer has more than {webhook_post.HEAD_BYTES} bytes"


def silent(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def byte_by_byte(connection: socket.socket) -> None:
    for byte in itertools.cycle(b"HTTP/1.1 200 OK\r\nx: y"):
        connection.sendall(bytes([byte]))
        time.sleep(0.01)


def interim_slowly(connection: socket.socket) -> None:
    while True:
        connection.sendall(INTERIM)
        time.sleep(0.2)


def never_read(_: socket.socket) -> None:
    threading.Event().wait(2)


@pytest.mark.parametrize("hang", [silent, byte_by_byte, interim_slowly, never_read])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_attempt_ends_wherever_it_hangs(
    store: JobStore,
    outbox: DeliveryStore,
    start: Start,
    hang: Callable[[socket.socket], None],
    scheme: str,
) -> None:
    """With https in the handshake, or in what is none."""
    start()

    def serve(connection: socket.socket) -> None:
        with closing(connection):
            hang(connection)

    with Speaking(serve) as url:
        delivery = over(outbox, queue_delivery(store, url.replace("http", scheme)), "me")
    assert delivery.status is DeliveryStatus.FAILED
    assert delivery.attempts[0]["duration_s"] < 10


def test_an_attempt_ends_where_nobody_accepts(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    """The queue of connections is full, so that the system answers none."""
    start()
    with socket.create_server(("127.0.0.1", 0), backlog=1) as full, ExitStack() as stack:
        for _ in range(5):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        delivery = over(outbox, queue_delivery(store, f"http://127.0.0.1:{full.getsockname()[1]}/"), "me")
    assert delivery.status is DeliveryStatus.FAILED
    assert delivery.attempts[0]["error"] == "no answer within 1 s"
    assert delivery.attempts[0]["duration_s"] < 10


@pytest.mark.parametrize("body", [b"", b"x" * 100_000], ids=["no body", "endless body"])
def test_an_answer_ends_the_attempt_whether_the_receiver_closes_or_not(
    store: JobStore,
    outbox: DeliveryStore,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    sender = start(timeout_s=LONG_S)
    done = threading.Event()

    def say(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(GOOD)
        with suppress(OSError):
            while body:
                connection.sendall(body)
        done.wait(30)

    def say_in_tls(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True, suppress_ragged_eofs=True) as wrapped:
            say(wrapped)

    def plain(connection: socket.socket) -> None:
        with closing(connection):
            say(connection)

    with Speaking(plain) as url, Speaking(say_in_tls) as tls_url:
        for one in (url, tls_url.replace("http", "https")):
            assert over(outbox, queue_delivery(store, one), "me").status is DeliveryStatus.DELIVERED
        wait_until(lambda: not sender._in_flight_now())
        done.set()


def held_by(receivers: list[Receiver]) -> int:
    return sum(len(receiver.got) for receiver in receivers)


def test_owners_of_many_slow_receivers_leave_room_for_others(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    """Each owner has more deliveries than it gets slots, to hosts enough."""
    start(timeout_s=LONG_S)
    owners, each = 4, 40
    with ExitStack() as stack, honest(store, outbox) as deliver:
        slow = [stack.enter_context(receiving(held=True, host=f"127.0.1.{n}")) for n in range(1, each + 1)]
        for receiver in slow:
            for owner in range(owners):
                queue_delivery(store, receiver.url, owner=f"hostile{owner}")
        most = webhook_sender.MOST_AT_ONCE
        wait_until(lambda: held_by(slow) >= owners * most // 13, report=lambda: str(held_by(slow)))
        for _ in range(5):
            deliver()
        assert held_by(slow) <= owners * (most // 9 + 1)
        for receiver in slow:
            receiver.released.set()


def test_one_host_on_many_ports_is_one_host(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    start(timeout_s=LONG_S)
    with ExitStack() as stack, receiving(host="127.0.1.2") as other:
        slow = [stack.enter_context(receiving(held=True)) for _ in range(8)]
        waiting = [queue_delivery(store, receiver.url) for receiver in slow]
        wait_until(lambda: held_by(slow) == share(webhook_sender.MOST_TO_ONE, 0, HALF))
        assert over(outbox, queue_delivery(store, other.url), "me").status is DeliveryStatus.DELIVERED
        assert held_by(slow) == 4
        for receiver in slow:
            receiver.released.set()
        for delivery_id in waiting:
            assert over(outbox, delivery_id, "me").status is DeliveryStatus.DELIVERED


def test_many_names_of_one_address_are_one_address(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    """Of another owner at the same address one goes through."""

    def resolve(host: str, port: int, **options: Any) -> list[Any]:
        return socket.getaddrinfo("127.0.0.1" if host.endswith(".test") else host, port, **options)

    start(Guard(LOOPBACK, resolve=resolve), timeout_s=LONG_S)
    most = share(connection_slots.MOST_TO_ADDRESS, 0, HALF)
    with receiving(held=True) as slow, receiving() as quick:
        names = [slow.url.replace("127.0.0.1", f"n{n}.test") for n in range(2 * most)]
        waiting = [queue_delivery(store, url) for url in names]
        slow.wait_for(most)
        delivery_id = queue_delivery(store, quick.url.replace("127.0.0.1", "other.test"), owner="other")
        assert over(outbox, delivery_id, "other").status is DeliveryStatus.DELIVERED
        assert len(slow.got) == most
        slow.released.set()
        for delivery_id in waiting:
            assert over(outbox, delivery_id, "me").status is DeliveryStatus.DELIVERED


def test_who_finds_no_connection_free_is_told_so(
    store: JobStore, outbox: DeliveryStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_slots, "MOST_TO_ADDRESS", 1)
    start(timeout_s=2.0)
    with receiving(held=True) as slow:
        queue_delivery(store, slow.url)
        slow.wait_for(1)
        [attempt] = over(outbox, queue_delivery(store, slow.url), "me").attempts
        assert attempt["error"] == (
            "nothing was sent: other deliveries to its address took all connections for 1 s"
        )
        assert len(slow.got) == 1


def test_few_addresses_of_a_name_are_tried(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    """A name may have thousands: nobody scans a network through us."""

    def resolve(_: str, port: int, **__: Any) -> list[Any]:
        wrong = [f"127.0.2.{n}" for n in range(1, webhook_sender.MOST_ADDRESSES + 1)]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in (*wrong, "127.0.0.1")]

    start(Guard(LOOPBACK, resolve=resolve))
    with receiving() as receiver:
        delivery = over(outbox, queue_delivery(store, receiver.url.replace("127.0.0.1", "many.test")), "me")
        assert delivery.status is DeliveryStatus.FAILED
        assert receiver.got == []


@pytest.mark.parametrize(("most", "part", "alone"), [(1, 2, 1), (12, 2, 4), (24, 2, 8), (256, 8, 29)])
def test_slots_are_left_for_who_holds_none(most: int, part: int, alone: int) -> None:
    """Each owner takes all it may, one after the other, and gives none back."""
    assert share(most, 0, part) == alone
    free, owners = most, 0
    while free:
        held = 0
        while took := share(free, held, part):
            held, free = held + took, free - took
        assert held >= 1
        owners += 1
    assert owners >= {1: 1, 12: 6, 24: 7, 256: 34}[most]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (network(one) == network(other)) == same


def test_a_name_server_that_never_answers_holds_up_its_owner_alone(
    store: JobStore, outbox: DeliveryStore, settings: Settings, tmp_path: Path
) -> None:
    """With the system's own resolver, whose look-ups outlast attempts; names of /etc/hosts need no server."""
    server = SilentNameServer(tmp_path, look_up_s=30)
    if missing := server.missing():
        pytest.skip(missing)
    workers = Workers(tmp_path)
    try:
        with server, honest(store, outbox) as deliver, receiving() as local:
            once = constants({"tasks.webhooks.store.SCHEDULE": {"timeout_s": 1.0, "retries_s": []}})
            io = workers.io(settings, once, before=server.command)
            hung = [queue_delivery(store, f"http://n{n}.silent.test/", owner="hostile") for n in range(60)]
            over(outbox, hung[0], "hostile", timeout_s=40)
            deliver()
            url = local.url.replace("127.0.0.1", "localhost")
            assert over(outbox, queue_delivery(store, url), "me").status is DeliveryStatus.DELIVERED
            most = share(webhook_sender.MOST_AT_ONCE, 0, EIGHTH)
            wait_until(lambda: len(server.asked) >= most)
            assert len(server.asked) <= most + 2, "and the honest owner's came between"
            io.terminate(20)  # sooner than the look-ups return
    finally:
        workers.close()
