"""Webhooks reach the addresses that were checked, and no others."""

from __future__ import annotations

import socket
import ssl
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import trustme

from tasks.base.settings import Settings
from tasks.records.webhook import DeliveryStatus
from tasks.store.jobs import JobStore
from tasks.webhooks.own_services import OwnServices
from tasks.webhooks.ssrf_guard import Guard
from tasks.webhooks.store import DeliveryStore
from tests.support.peers.receivers import LOOPBACK, Visited, receiving, status
from tests.support.servers import RedisServer, fast_settings
from tests.tasks.helpers.outbox import Start, over, queue_delivery

DAY_S = 86_400.0


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, webhook_allow=LOOPBACK)


def names(*answers: list[str]) -> tuple[Any, list[str]]:
    """A name server that gives these answers one after the other, and the names that it was asked for."""
    asked: list[str] = []

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    return resolve, asked


@pytest.mark.slow
def test_a_private_address_gets_nothing(store: JobStore, outbox: DeliveryStore, start: Start) -> None:
    start(Guard(), retries_s=[])
    with receiving() as inside:
        for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1"):
            delivery = over(outbox, queue_delivery(store, inside.url.replace("127.0.0.1", host)))
            assert delivery.status is DeliveryStatus.FAILED
            assert "not lead to public addresses" in delivery.attempts[0]["error"]
        assert inside.got == []


@pytest.mark.slow
@pytest.mark.parametrize("answers", [["127.0.0.1"], ["127.0.0.2"], ["::1"], ["127.0.0.3", "127.0.0.1"]])
def test_our_own_redis_gets_nothing_by_any_name(
    store: JobStore, outbox: DeliveryStore, start: Start, settings: Settings, answers: list[str]
) -> None:
    own = OwnServices.of(settings)
    [(_, port)] = own.redis
    resolve, _ = names(answers)
    start(Guard([*LOOPBACK, ip_network("::1/128")], own=own, resolve=resolve), retries_s=[])
    delivery = over(outbox, queue_delivery(store, f"http://inside.test:{port}/"))
    assert delivery.status is DeliveryStatus.FAILED
    assert "or it leads to a service of medusaq" in delivery.attempts[0]["error"]
    delivery = over(outbox, queue_delivery(store, f"http://127.0.0.1:{port}/"))
    assert f"port {port} of 127.0.0.1 belongs to a service" in delivery.attempts[0]["error"]


@pytest.mark.slow
def test_a_name_that_changes_its_answer_gains_nothing(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    """127.0.0.1 stands for a public address here, 127.0.0.2 for one in our network."""
    resolve, asked = names(["127.0.0.1"], ["127.0.0.2"], ["127.0.0.1", "127.0.0.2"])
    start(Guard([ip_network("127.0.0.1/32")], resolve=resolve))
    with receiving() as outside:
        port = int(outside.url.split(":")[2].split("/")[0])
        outside.answer = status(500)
        with Visited("127.0.0.2", port) as reached:
            delivery = over(outbox, queue_delivery(store, f"http://rebinding.test:{port}/"))
        assert delivery.status is DeliveryStatus.FAILED
        assert asked == ["rebinding.test"] * 3, "once for each attempt"
        assert [a["status_code"] for a in delivery.attempts] == [500, None, None]
        assert [got.headers["host"] for got in outside.got] == [f"rebinding.test:{port}"]
        assert reached == []


@pytest.mark.slow
def test_the_next_address_is_tried_where_one_does_not_answer(
    store: JobStore, outbox: DeliveryStore, start: Start
) -> None:
    resolve, _ = names(["127.0.0.3", "127.0.0.1"])
    start(Guard(LOOPBACK, resolve=resolve))
    with receiving() as receiver:
        url = receiver.url.replace("127.0.0.1", "two.test")
        assert over(outbox, queue_delivery(store, url)).status is DeliveryStatus.DELIVERED


@pytest.mark.slow
def test_tls_is_with_the_name_not_with_the_address(
    store: JobStore, outbox: DeliveryStore, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("good.test").configure_cert(context)
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    resolve, _ = names(["127.0.0.1"])
    start(Guard(LOOPBACK, resolve=resolve), retries_s=[])
    with receiving(context) as receiver:
        good = over(outbox, queue_delivery(store, receiver.url.replace("127.0.0.1", "good.test")))
        assert good.status is DeliveryStatus.DELIVERED
        assert receiver.got[0].headers["host"].startswith("good.test:")
        bad = over(outbox, queue_delivery(store, receiver.url.replace("127.0.0.1", "bad.test")))
        assert bad.status is DeliveryStatus.FAILED
        assert "certificate" in bad.attempts[0]["error"]
        assert asked == ["good.test", "bad.test"]
        assert len(receiver.got) == 1
