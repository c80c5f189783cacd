"""Deliveries to real receivers: what they get, and what their answers do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from tasks.base.settings import Settings
from tasks.records.webhook import DeliveryStatus
from tasks.store.jobs import JobStore
from tasks.webhooks import sender as webhook_sender
from tasks.webhooks.connection_slots import HALF, share
from tasks.webhooks.ssrf_guard import Guard
from tasks.webhooks.store import DeliveryStore
from tests.support.peers.receivers import LOOPBACK, Speaking, Visited, receiving, status
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import wait_until
from tests.tasks.helpers.outbox import Start, over, queue_delivery, tried

pytestmark = pytest.mark.slow

DAY_S = 86_400.0


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, webhook_allow=LOOPBACK)


def test_a_receiver_gets_what_its_library_verifies(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    start()
    with receiving() as receiver:
        delivery_id = queue_delivery(store, receiver.url + "?a=b&c", text="é😀")
        [got] = receiver.wait_for(1)
        secret = outbox.secrets("me").current
        event = Verifier(secret).verify(got.body, got.headers)
        assert got.headers["webhook-id"] == event["id"] == delivery_id
        assert (event["type"], event["data"]["result"]) == ("job.succeeded", {"text": "é😀"})
        assert got.path == "/hook?a=b&c"
        assert got.headers["content-type"] == "application/json"
        assert got.headers["host"] == receiver.url.split("/")[2]
        delivery = over(outbox, delivery_id)
        assert (delivery.status, delivery.event) == (DeliveryStatus.DELIVERED, event)


def test_both_secrets_sign_while_they_change(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    start()
    before = outbox.secrets("me").current
    after = outbox.secrets("me", rotate=True).current
    with receiving() as receiver:
        queue_delivery(store, receiver.url)
        [got] = receiver.wait_for(1)
        for secret in (before, after):
            Verifier(secret).verify(got.body, got.headers)


def test_what_failed_is_tried_again_under_the_same_id(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    start()
    with receiving() as receiver:
        codes = iter([500, 404, 200])
        receiver.answer = lambda _: (next(codes), {})
        delivery = over(outbox, queue_delivery(store, receiver.url))
        assert delivery.status is DeliveryStatus.DELIVERED
        assert [a["status_code"] for a in delivery.attempts] == [500, 404, 200]
        assert {got.headers["webhook-id"] for got in receiver.got} == {delivery.id}
        assert len({got.body for got in receiver.got}) == 1
        for got in receiver.got:
            Verifier(outbox.secrets("me").current).verify(got.body, got.headers)


def test_a_signature_is_of_its_own_attempt(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    """Receivers refuse what was signed long ago, as a message of the first attempt would be in a day."""
    start(retries_s=[1.1])
    with receiving() as receiver:
        codes = iter([500, 200])
        receiver.answer = lambda _: (next(codes), {})
        delivery = over(outbox, queue_delivery(store, receiver.url))
        signed_at = [int(got.headers["webhook-timestamp"]) for got in receiver.got]
        assert signed_at == [int(attempt["at"]) for attempt in delivery.attempts]
        assert signed_at[0] < signed_at[1]
        for got in receiver.got:
            Verifier(outbox.secrets("me").current).verify(got.body, got.headers)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize("spelled", [str.upper, str.lower])
def test_proxies_of_the_environment_are_not_used(
    store: JobStore,
    outbox: DeliveryStore,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    spelled: Callable[[str], str],
) -> None:
    """One would connect wherever it likes, however well we have looked."""
    port = free_port()
    monkeypatch.setenv(spelled(name), f"http://127.0.0.1:{port}")
    for exception in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(exception, raising=False)
    with Visited("127.0.0.1", port) as reached, receiving() as receiver, receiving() as silent:
        start(retries_s=[])
        assert over(outbox, queue_delivery(store, receiver.url)).status is DeliveryStatus.DELIVERED
        no_tls = silent.url.replace("http://", "https://")
        assert over(outbox, queue_delivery(store, no_tls)).status is DeliveryStatus.FAILED
        assert len(receiver.got) == 1
        assert reached == []


def test_in_the_end_it_is_given_up_and_can_be_replayed(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    start()
    with receiving() as receiver:
        receiver.answer = status(500)
        delivery = over(outbox, queue_delivery(store, receiver.url))
        assert (delivery.status, len(delivery.attempts)) == (DeliveryStatus.FAILED, 3)
        receiver.answer = status(204)
        outbox.replay(delivery.id, "me")
        again = over(outbox, delivery.id)
        assert (again.status, again.event) == (DeliveryStatus.DELIVERED, delivery.event)
        assert len({got.headers["webhook-id"] for got in receiver.got}) == 1


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_failure_that_nobody_follows(
    store: JobStore, outbox: DeliveryStore, start: Start, code: int
) -> None:
    start(retries_s=[])
    with receiving() as inside, receiving() as receiver:
        receiver.answer = status(code, Location=inside.url)
        delivery = over(outbox, queue_delivery(store, receiver.url))
        assert delivery.status is DeliveryStatus.FAILED
        assert [a["status_code"] for a in delivery.attempts] == [code]
        assert inside.got == []


def test_410_disables_the_address(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    start()
    with receiving() as receiver:
        receiver.answer = status(410)
        first = over(outbox, queue_delivery(store, receiver.url))
        more = [queue_delivery(store, receiver.url) for _ in range(webhook_sender.MOST_TO_ONE)]
        second, *_ = [over(outbox, delivery_id) for delivery_id in more]
        assert {first.status, second.status} == {DeliveryStatus.DISABLED}
        assert len(receiver.got) == 1
        receiver.answer = status(200)
        outbox.replay(second.id, "me")
        assert over(outbox, second.id).status is DeliveryStatus.DELIVERED


def in_an_hour() -> str:
    from email.utils import formatdate
    from time import time

    return formatdate(time() + 3600, usegmt=True)


@pytest.mark.parametrize(
    ("asked", "least_s", "most_s"),
    [
        ("120", 110, 121),
        (None, 3500, 3601),
        ("999999999", DAY_S - 10, DAY_S + 1),
        ("1e9", 4, 6),
        ("-5", 4, 6),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 4, 6),
        ("soon", 4, 6),
        ("Mon, 01 Jan 99999999999999 00:00:00 GMT", 4, 6),
        ("Mon, 01 Jan 2035 00:00:00 +99999999999999", 4, 6),
        ("Fri, 31 Dec 9999 23:59:59 -2359", DAY_S - 10, DAY_S + 1),
    ],
)
def test_retry_after(
    store: JobStore, outbox: DeliveryStore, start: Start, asked: str | None, least_s: float, most_s: float
) -> None:
    start(retries_s=[5.0])
    with receiving() as receiver:
        receiver.answer = status(503, Retry_After=asked or in_an_hour())
        delivery = tried(outbox, queue_delivery(store, receiver.url))
        assert delivery.next_attempt_at is not None
        [attempt] = delivery.attempts
        waits_s = delivery.next_attempt_at - attempt["at"] - attempt["duration_s"]
        assert least_s <= waits_s <= most_s


def test_a_receiver_that_hangs_holds_up_no_other(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    start(timeout_s=30.0)
    most = share(webhook_sender.MOST_TO_ONE, 0, HALF)
    with receiving(held=True) as slow, receiving(host="127.0.0.2") as other:
        waiting = [queue_delivery(store, slow.url) for _ in range(3 * most)]
        slow.wait_for(most)
        quick = [queue_delivery(store, other.url) for _ in range(20)]
        for delivery_id in quick:
            assert over(outbox, delivery_id).status is DeliveryStatus.DELIVERED
        assert len(slow.got) == most
        slow.released.set()
        for delivery_id in waiting:
            assert over(outbox, delivery_id).status is DeliveryStatus.DELIVERED
        assert len(slow.got) == len(waiting)


def test_many_at_once_and_no_more(
    store: JobStore, outbox: DeliveryStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sender, "MOST_AT_ONCE", 10)  # of which one owner gets two
    start(timeout_s=30.0)
    with receiving(held=True) as slow:
        waiting = [queue_delivery(store, slow.url) for _ in range(6)]
        slow.wait_for(2)
        assert len(slow.got) == 2
        slow.released.set()
        for delivery_id in waiting:
            assert over(outbox, delivery_id).status is DeliveryStatus.DELIVERED


def test_an_attempt_ends_in_time_however_the_answer_drips(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    start(timeout_s=0.3, retries_s=[])
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        with closing(connection):
            connection.sendall(b"HTTP/1.1 ")
            while not stop.wait(0.05):
                connection.sendall(b"2")

    with receiving(held=True) as silent, Speaking(drip) as dripping:
        for url in (silent.url, dripping):
            delivery = over(outbox, queue_delivery(store, url))
            assert delivery.status is DeliveryStatus.FAILED
            [attempt] = delivery.attempts
            assert attempt["error"] == "no answer within 0.3 s"
            assert attempt["duration_s"] < 8
        stop.set()


ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65536 + b"\r\n"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", None),
        (b"nonsense\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n", None),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 OK\r\nContent-Length: 0\r\n\r\n", 202),
        (ENDLESS, 200),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\nContent-Encoding: gzip\r\n\r\nx", 200),
    ],
)
def test_answers_that_are_no_good(
    store: JobStore, outbox: DeliveryStore, start: Start, answer: bytes, code: int | None
) -> None:
    start(retries_s=[])

    def say(connection: socket.socket) -> None:
        with closing(connection):
            connection.recv(65536)
            connection.sendall(answer)

    with Speaking(say) as url:
        delivery = over(outbox, queue_delivery(store, url))
        [attempt] = delivery.attempts
        assert attempt["status_code"] == code
        assert (attempt["error"] is None) == (code is not None)
        good = DeliveryStatus.DELIVERED if code else DeliveryStatus.FAILED
        assert delivery.status is good


def test_what_a_server_says_is_neither_kept_nor_shown(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    start(retries_s=[])

    def say(connection: socket.socket) -> None:
        with closing(connection):
            connection.recv(65536)
            connection.sendall(b"220 mail.internal " + b"\xff" * 10_000 + b"\r\n\r\n")

    with Speaking(say) as url:
        [attempt] = over(outbox, queue_delivery(store, url)).attempts
    assert attempt["error"] == "the response is not valid HTTP, or incomplete"


def test_a_long_error_is_cut(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    start(retries_s=[])
    name = ".".join(["a" * 60] * 30)  # longer than names may be: no name server is asked
    [attempt] = over(outbox, queue_delivery(store, f"http://{name}/")).attempts
    assert attempt["error"] == name[: webhook_sender.ERROR_CHARS]


def test_name_servers_that_hang_hold_up_no_other_owner(
    store: JobStore, outbox: DeliveryStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sender, "MOST_AT_ONCE", 10)  # of which one owner gets two
    hanging: list[str] = []
    answers = threading.Event()

    def resolve(host: str, port: int, **options: Any) -> list[Any]:
        if host.endswith(".test"):
            hanging.append(host)
            answers.wait(60)
            raise OSError("no such name")
        return socket.getaddrinfo(host, port, **options)

    start(Guard(LOOPBACK, resolve=resolve), timeout_s=2.0, retries_s=[])
    slow = [queue_delivery(store, f"http://{i}.test/", owner="slow") for i in range(8)]

    def given_up() -> int:
        return sum(outbox.get(d, "slow").status is DeliveryStatus.FAILED for d in slow)

    wait_until(lambda: given_up() == 2)
    with receiving() as receiver:
        for _ in range(5):
            assert over(outbox, queue_delivery(store, receiver.url)).status is DeliveryStatus.DELIVERED
    assert (len(hanging), given_up()) == (2, 2), "their look-ups take room for as long as they last"
    answers.set()
    wait_until(lambda: given_up() == 8, report=lambda: str(hanging))


def test_a_slow_redis_is_no_failure_of_the_receiver(
    store: JobStore, outbox: DeliveryStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys are asked for twice: the first answer comes too late, the second at once."""
    signing_keys, asked, answers = DeliveryStore.signing_keys, [], threading.Event()

    def late(self: DeliveryStore, owner: str) -> list[str]:
        asked.append(owner)
        if len(asked) == 1:
            answers.wait(60)
        return signing_keys(self, owner)

    monkeypatch.setattr(DeliveryStore, "signing_keys", late)
    start(timeout_s=2.0, retries_s=[])
    with receiving() as receiver:
        delivery = over(outbox, queue_delivery(store, receiver.url))
        answers.set()
        assert delivery.status is DeliveryStatus.DELIVERED
        assert len(receiver.got) == 1
    assert not any("no answer" in str(a["error"]) for a in delivery.attempts)


def test_what_the_sender_itself_does_wrong_is_noted(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    def resolve(*_: object, **__: object) -> list[Any]:
        return [("not what name servers answer",)]

    start(Guard(resolve=resolve), retries_s=[])
    delivery = over(outbox, queue_delivery(store, "http://example.com/"))
    assert delivery.status is DeliveryStatus.FAILED
    assert [a["error"] for a in delivery.attempts] == [
        "an internal error, which the log of the io worker describes"
    ]


def test_nobody_listens(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    start(retries_s=[])
    with receiving() as receiver:
        url = receiver.url
    delivery = over(outbox, queue_delivery(store, url))
    assert delivery.status is DeliveryStatus.FAILED
    assert delivery.attempts[0]["error"]
