"""The guard of webhooks against the known ways into a private network."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from ipaddress import ip_network
from typing import Any

import pytest

from tasks.base.errors import TargetRefused
from tasks.base.setting_names import METRICS_PORTS
from tasks.base.settings import Settings
from tasks.records.webhook import target_of
from tasks.webhooks.own_services import OwnServices, is_own, leads_here
from tasks.webhooks.ssrf_guard import Guard
from tests.support.workers import ROOT

EVERYWHERE = [ip_network("0.0.0.0/0"), ip_network("::/0")]
PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",  # metadata of most clouds
    "168.63.129.16",  # Azure's
    "192.0.0.192",  # Oracle's
    "100.100.100.200",  # Alibaba's
    "100.64.0.1",
    "0.0.0.0",
    "0.1.2.3",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",  # Amazon's metadata
    "ff02::1",
    "100::1",
    "2001:db8::1",
    "3fff::1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b:1::a00:1",
    "2002:7f00:1::1",
    "2001:0:7f00:1::1",
]
SPELT_OTHERWISE = [
    "2130706433",  # 127.0.0.1 in one number
    "0x7f000001",
    "0x7F.0x0.0x0.0x1",
    "017700000001",
    "0177.0.0.1",
    "127.1",
    "127.0.1",
    "0x7f.1",
    "0",
    "00000000177.0.0.01",
    "3232235777",  # 192.168.1.1
    "0xa9fea9fe",  # 169.254.169.254
    "169.254.43518",
    "0:0:0:0:0:0:0:1",
    "0000::0001",
    "::ffff:7f00:1",
    "0:0:0:0:0:ffff:7f00:0001",
    "localhost",
    "LOCALHOST",
    "a.localhost",
]
DENIED = [ip_network("2a00:1450:1::/48"), ip_network("8.0.0.0/8")]
ALLOWED = [ip_network("2a00::/16"), ip_network("8.8.0.0/16"), ip_network("64:ff9b::/96")]
PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450::1"]


def answers(*addresses: str) -> Any:
    """A name server that has these."""
    return lambda _host, port, **_: [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses
    ]


@pytest.mark.parametrize("host", [*PRIVATE, *SPELT_OTHERWISE])
def test_an_address_that_is_not_public_is_refused_when_it_is_given(host: str) -> None:
    with pytest.raises(TargetRefused):
        Guard().check_literal(host, 443)
    Guard(EVERYWHERE).check_literal(host, 443)


@pytest.mark.parametrize("host", [*PRIVATE, *SPELT_OTHERWISE, "ip6-localhost", "fe80::1%lo", "127.0.0.1."])
def test_and_by_the_system_s_own_resolver(host: str) -> None:
    with pytest.raises(TargetRefused):
        Guard().addresses(host, 80)


@pytest.mark.parametrize("host", PUBLIC)
def test_public_ones_pass(host: str) -> None:
    Guard().check_literal(host, 443)
    assert Guard().addresses(host, 443) == [host]


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_that_leads_to_one_is_refused_even_beside_a_public_address(address: str) -> None:
    Guard().check_literal("example.com", 443)
    for found in ((address,), ("8.8.8.8", address), (address, "8.8.8.8")):
        with pytest.raises(TargetRefused, match=r"^example\.com does not lead") as caught:
            Guard(resolve=answers(*found)).addresses("example.com", 80)
        assert address not in str(caught.value), "it tells nobody what our names lead to"


def test_an_interface_is_no_part_of_an_address() -> None:
    with pytest.raises(TargetRefused):
        Guard(resolve=answers("2606:4700::1%eth0")).addresses("example.com", 80)


def test_networks_that_are_allowed() -> None:
    guard = Guard([ip_network("10.1.0.0/16"), ip_network("64:ff9b::/96")])
    for address in ("10.1.2.3", "64:ff9b::8.8.8.8", "8.8.8.8"):
        guard.check_literal(address, 443)
    for address in ("10.2.0.1", "127.0.0.1", "::1", "::ffff:10.1.2.3"):
        with pytest.raises(TargetRefused):
            guard.check_literal(address, 443)


def test_an_address_inside_that_of_an_allowed_nat64_is_judged_alone() -> None:
    guard = Guard([ip_network("64:ff9b::/96"), ip_network("10.1.0.0/16")])
    for address in ("64:ff9b::8.8.8.8", "64:ff9b::10.1.2.3"):
        guard.check_literal(address, 443)
    for address in ("64:ff9b::10.2.0.1", "64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254"):
        with pytest.raises(TargetRefused):
            guard.check_literal(address, 443)


@pytest.mark.parametrize(
    "guard",
    [
        Guard(denied=DENIED),
        Guard(ALLOWED, DENIED),
        Guard(EVERYWHERE, DENIED),
        Guard.of(
            Settings(_env_file=None, webhook_deny=DENIED, webhook_allow=ALLOWED)  # type: ignore[call-arg]
        ),
    ],
    ids=["alone", "beside what is allowed", "beside all", "by the settings"],
)
def test_networks_that_are_denied_whatever_allows_them(guard: Guard) -> None:
    for address in (
        "2a00:1450:1::1",
        "8.8.8.8",
        "134744072",  # 8.8.8.8
        "::ffff:8.8.8.8",
        "::8.8.8.8",
        "::ffff:0:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
        "2001:0:4136:e378:8000:63bf:f7f7:f7f7",  # Teredo of 8.8.8.8
    ):
        with pytest.raises(TargetRefused):
            guard.check_literal(address, 443)
    for address in ("2a00:1450:2::1", "1.1.1.1"):
        guard.check_literal(address, 443)
    name = Guard(ALLOWED, DENIED, resolve=answers("1.1.1.1", "2a00:1450:1::1"))
    with pytest.raises(TargetRefused):
        name.addresses("example.com", 443)


def test_an_address_of_this_machine_is_known_without_a_packet() -> None:
    for address in ("127.0.0.1", "::1"):
        if ":" not in address or socket.has_ipv6:
            assert is_own(address), address
    for address in ("8.8.8.8", "2606:4700:4700::1111", "192.0.2.1"):
        assert not is_own(address), address


@pytest.mark.parametrize("address", ["203.0.114.7", "2a00:1450::7"])
def test_a_public_address_of_this_machine_is_refused(address: str) -> None:
    """In a network namespace of its own, whose loopback interface gets it."""
    code = f"""
import socket
import subprocess
import sys
from ipaddress import ip_network
from tasks.base.errors import TargetRefused
from tasks.webhooks.own_services import OwnServices, is_own, leads_here
from tasks.webhooks.ssrf_guard import Guard
from tasks.base.settings import Settings
resolve = lambda host, port, **_: [(0, 0, 0, "", ({address!r}, port))]
Guard([ip_network({address!r})]).check_literal({address!r}, 443)
by_name = Guard(resolve=resolve)
for check in (lambda: Guard().check_literal({address!r}, 443), lambda: by_name.addresses("a.example", 80)):
    try:
        check()
    except TargetRefused:
        continue
    raise SystemExit("it may be reached")
"""
    Guard().check_literal(address, 443)
    setup = f"ip link set lo up && ip addr add {address}/{128 if ':' in address else 32} dev lo"
    namespace = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c"]
    if subprocess.run([*namespace, setup], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    run = [*namespace, f'{setup} && exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


HERE = [
    *("127.0.0.1", "127.8.9.1", "0.0.0.0", "0", "0x7f.1", "localhost", "a.localhost"),
    *("::1", "::", "::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1"),
]


@pytest.mark.parametrize("host", HERE)
def test_ports_of_our_own_are_refused_whatever_is_allowed(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS_PORTS, "9100,9101,9102")
    settings = Settings(
        _env_file=None,  # type: ignore[call-arg]  # pydantic
        webhook_allow=EVERYWHERE,
        redis_url="redis://:secret@127.0.0.1:7001/0",
        port=7002,
        flower_port=7003,
        metrics_address="127.0.0.1:7004",
    )
    guard = Guard.of(settings)
    for port in (7001, 7002, 7003, 7004, 9100, 9101, 9102):
        for check in (guard.check_literal, guard.addresses):
            with pytest.raises(
                TargetRefused, match=f"^port {port} of {re.escape(host)} belongs to a service"
            ):
                check(host, port)
    guard.check_literal(host, 7005)
    guard.check_literal("10.0.0.1", 7001)


def test_names_that_lead_to_ports_of_our_own(caplog: pytest.LogCaptureFixture) -> None:
    own = OwnServices(frozenset({7002}), (("redis.internal", 6379),))
    for address, port in (("127.0.0.1", 7002), ("::ffff:127.0.0.1", 7002), ("10.0.0.7", 6379)):
        guard = Guard(EVERYWHERE, own=own, resolve=answers("8.8.8.8", address))
        guard.check_literal("a.example", port)
        with pytest.raises(TargetRefused, match=r"^a\.example does not lead") as refused:
            guard.addresses("a.example", port)
        assert address not in str(refused.value)
        assert f"port {port} of our own" in caplog.messages[-1]
        assert guard.addresses("a.example", port + 1)


def test_a_redis_on_another_machine_is_our_own() -> None:
    guard = Guard(EVERYWHERE, own=OwnServices(frozenset(), (("10.0.0.7", 6379),)))
    with pytest.raises(TargetRefused, match="belongs to a service"):
        guard.check_literal("10.0.0.7", 6379)
    guard.check_literal("10.0.0.8", 6379)
    with pytest.raises(TargetRefused, match="does not lead"):
        Guard(own=OwnServices(frozenset(), (("10.0.0.7", 6379),))).check_literal("10.0.0.7", 6379)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("redis://redis", (("redis", 6379),)),
        ("rediss://me:secret@10.0.0.1:7001/3?ssl_cert_reqs=none", (("10.0.0.1", 7001),)),
        ("redis+sentinel://a:1,[::1]:2/main", (("a", 1), ("::1", 2))),
    ],
)
def test_where_redis_is(url: str, hosts: tuple[tuple[str, int], ...]) -> None:
    settings = Settings(_env_file=None, redis_url=url)  # type: ignore[call-arg]  # pydantic
    assert OwnServices.of(settings).redis == hosts


def test_other_addresses_do_not_lead_here() -> None:
    for address in ("8.8.8.8", "192.0.2.1", "2606:4700:4700::1111"):
        assert not leads_here(address), address


def test_names_that_cannot_be_resolved() -> None:
    for name in ("nowhere.invalid", "a" * 64 + ".com"):
        with pytest.raises(TargetRefused):
            Guard().addresses(name, 80)


def test_the_log_alone_tells_a_name_of_ours_from_none(caplog: pytest.LogCaptureFixture) -> None:
    told = []
    for guard in (Guard(resolve=answers("10.0.0.1")), Guard(resolve=socket.getaddrinfo)):
        with pytest.raises(TargetRefused) as caught:
            guard.addresses("intranet.invalid", 80)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "not allowed: 10.0.0.1" in caplog.messages[0]
    assert "cannot be resolved: " in caplog.messages[1]


def test_what_is_no_name_is_refused_when_it_is_given() -> None:
    with pytest.raises(TargetRefused, match=r"^a+\.com is no name of a host$"):
        Guard().check_literal("a" * 64 + ".com", 443)
    Guard().check_literal("a" * 63 + ".com", 443)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "http+unix://%2Frun%2Fredis.sock/",
        "javascript:alert(1)",
        "http:example.com",
        "http:/example.com",
        "http:///example.com",
        "http://",
        "http://?",
        "http://:80/",
        " http://example.com/",
        "http://example.com/\n",
        "http://exa mple.com/",
        "http://example.com/a b",
        "http://example.com\r\nHost: x/",
        "http://user@example.com/",
        "http://user:password@example.com/",
        "http://example.com@127.0.0.1/",
        "http://127.0.0.1:80@example.com/",
        "http://example.com#@127.0.0.1/",
        "http://example.com/#part",
        "http://example.com\\@127.0.0.1/",
        "http:\\\\127.0.0.1/",
        "http://example.com\\.evil.test/",
        "http://example.com./",
        "http://127.0.0.1./",
        "http://localhost./",
        "http://.example.com/",
        "http://example..com/",
        "http://%31%32%37.0.0.1/",
        "http://example%2ecom/",
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://127\u30020\u30020\u30021/",
        "http://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/",
        "http://exämple.com/",
        "http://[::1",
        "http://::1/",
        "http://[::1%25lo]/",
        "http://[fe80::1%lo]/",
        "http://[::g]/",
        "http://[127.0.0.1]/",
        "http://[1:2:3:4:5:6:7:8:9]/",
        "http://[::1]x/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:-1/",
        "http://example.com:http/",
        "http://example.com:\uff18\uff10/",
        "http://example.com:80:80/",
        "http://example.com:/",
        "http://example.com/\u0000",
        "http://example.com/" + "a" * 2000,
    ],
)
def test_what_two_readers_could_read_differently_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"must|no such port"):
        target_of(url)


def test_what_is_one() -> None:
    target = target_of("HTTPS://Example.com:8443/a/b%20c?x=1&y=?")
    assert (target.scheme, target.host, target.port, target.path) == (
        "https",
        "Example.com",
        8443,
        "/a/b%20c?x=1&y=?",
    )
    assert (target.receiver, target.host_header) == ("example.com:8443", "Example.com:8443")
    assert target_of("http://a_b").host_header == "a_b"
    assert target_of("https://a?x").path == "/?x"
    six = target_of("http://[2606:4700::1111]:80/")
    assert (six.host, six.port, six.host_header) == ("2606:4700::1111", 80, "[2606:4700::1111]")
    assert target_of("https://xn--bcher-kva.example/").host == "xn--bcher-kva.example"
