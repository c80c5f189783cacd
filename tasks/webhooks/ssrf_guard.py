"""Where webhooks may be sent: to public addresses alone, so that nobody reaches into our network through us.

A name is resolved once for each attempt, every address it has is checked, and the connection is made to one
of those very addresses: a name that answers differently the next time gains nothing. TLS and the Host header
keep the name. Nothing follows a redirect.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from tasks.base.errors import TargetRefused
from tasks.base.settings import Settings

Network = IPv4Network | IPv6Network

# Of IPv6 only this is routed on the internet. It leaves out loopback, link-local, unique local and multicast
# addresses, and the forms that hold one of IPv4: mapped, compatible, translated, and NAT64.
PUBLIC_V6 = ip_network("2000::/3")
# What Python's is_global lets through, or has not known in every version.
NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        "168.63.129.16/32",  # answers every virtual machine on Azure
        "192.0.0.0/24",  # protocol assignments; Oracle's clouds answer there
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # protocol assignments, Teredo among them
        "2002::/16",  # 6to4: an address of IPv4 inside
        "3fff::/20",  # documentation
    )
)
HOLD_V4 = (ip_network("::/96"), ip_network("::ffff:0:0:0/96"))  # compatible, and translated (SIIT)
NAT64 = ip_network("64:ff9b::/96")
Resolve = Callable[..., list[tuple[Any, ...]]]

log = logging.getLogger(__name__)


class Guard:
    """Thread-safe. denied: refused whatever else allows it.

    resolve is socket.getaddrinfo, or for tests what stands for a name server.
    """

    def __init__(
        self,
        allowed: Iterable[Network] = (),
        denied: Iterable[Network] = (),
        *,
        resolve: Resolve = socket.getaddrinfo,
    ) -> None:
        self._allowed = tuple(allowed)
        self._denied = tuple(denied)
        self._resolve = resolve

    @classmethod
    def of(cls, settings: Settings) -> Guard:
        return cls(settings.webhook_allow, settings.webhook_deny)

    def check_literal(self, host: str) -> None:
        """Raise TargetRefused where it is known without asking a name server; names pass."""
        local = host.lower() == "localhost" or host.lower().endswith(".localhost")
        try:
            found = socket.getaddrinfo("127.0.0.1" if local else host, None, flags=socket.AI_NUMERICHOST)
        except OSError:
            return
        except UnicodeError:  # a part of it is longer than names of hosts may be
            raise TargetRefused(f"{host} is no name of a host") from None
        if self._forbidden(str(entry[4][0]) for entry in found):
            raise TargetRefused(_refused(host))

    def addresses(self, host: str, port: int) -> list[str]:
        """What to connect to, in this order; waits for a name server. Raises TargetRefused."""
        try:
            found = self._resolve(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            log.warning("webhooks: %s cannot be resolved: %s", host, reason or error)
            raise TargetRefused(_refused(host)) from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if forbidden := self._forbidden(addresses):
            log.warning("webhooks: %s leads to %s, where nothing may be sent", host, ", ".join(forbidden))
            raise TargetRefused(_refused(host))
        return addresses

    def _forbidden(self, addresses: Iterable[str]) -> list[str]:
        return [a for a in addresses if not self._may_reach(a)]

    def _may_reach(self, text: str) -> bool:
        plain, interface, _ = text.partition("%")
        address = ip_address(plain)
        inner = embedded(address)
        if any(each in network for each in (address, *inner) for network in self._denied):
            return False
        if interface:  # link-local: never beyond this machine's own networks
            return False
        if any(address in network for network in self._allowed):
            return address not in NAT64 or self._may_reach(str(inner[0]))
        if any(address in network for network in NOT_PUBLIC):
            return False
        unusual = address.is_multicast or address.is_reserved or not address.is_global
        return not (unusual or is_own(text)) and (isinstance(address, IPv4Address) or address in PUBLIC_V6)


def embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """The addresses of IPv4 in one of IPv6: mapped, compatible, translated, NAT64, 6to4, Teredo."""
    if isinstance(address, IPv4Address):
        return []
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    found = [address.ipv4_mapped, address.sixtofour, address.teredo[1] if address.teredo else None]
    holds_last = address in NAT64 or any(address in network for network in HOLD_V4)
    return [each for each in (*found, last if holds_last else None) if each is not None]


def is_own(text: str) -> bool:
    """Whether this machine has the address: the system would use it to reach itself. Nothing is sent."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((text, 9))
            return ip_address(asked.getsockname()[0]) == ip_address(text)
    except OSError:  # no way there
        return False


def _refused(host: str) -> str:
    """The same whatever is wrong: nobody shall learn which names and addresses there are in our network."""
    return f"{host} does not lead to public addresses alone, or to such as are allowed"
