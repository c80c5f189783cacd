"""Restricts webhooks to public addresses, against server-side request forgery (SSRF).

A name is resolved once for each attempt, all its addresses are checked, and the connection is made to one of
the checked addresses: a name that resolves differently the next time (DNS rebinding) has no effect. TLS and
the Host header keep the name. Redirects are not followed.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from tasks.base.errors import TargetRefused
from tasks.base.settings import Settings
from tasks.webhooks.own_services import NAT64, NONE, OwnServices, embedded, is_own

Network = IPv4Network | IPv6Network

# The only IPv6 network that is routed on the internet. It excludes loopback, link-local, unique local and
# multicast addresses, and those that embed an IPv4 address: mapped, compatible, translated, and NAT64.
PUBLIC_V6 = ip_network("2000::/3")
# Networks that Python's is_global accepts, at least in some versions.
NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        "168.63.129.16/32",  # answers every virtual machine on Azure
        "192.0.0.0/24",  # protocol assignments; Oracle's clouds answer there
        "192.88.99.0/24",  # 6to4 relays
        "2001::/23",  # protocol assignments, Teredo among them
        "2002::/16",  # 6to4: embeds an IPv4 address
        "3fff::/20",  # documentation
    )
)
Resolve = Callable[..., list[tuple[Any, ...]]]

log = logging.getLogger(__name__)


class Guard:
    """Thread-safe. denied: takes precedence over allowed, and so do our own services.

    resolve: socket.getaddrinfo, or a substitute in tests.
    """

    def __init__(
        self,
        allowed: Iterable[Network] = (),
        denied: Iterable[Network] = (),
        own: OwnServices = NONE,
        *,
        resolve: Resolve = socket.getaddrinfo,
    ) -> None:
        self._allowed = tuple(allowed)
        self._denied = tuple(denied)
        self._own = own
        self._resolve = resolve

    @classmethod
    def of(cls, settings: Settings) -> Guard:
        return cls(settings.webhook_allow, settings.webhook_deny, OwnServices.of(settings))

    def check_literal(self, host: str, port: int) -> None:
        """Raise TargetRefused for a forbidden address, localhost, a port of our own on an allowed one, or a
        malformed name. Other names pass.
        """
        local = host.lower() == "localhost" or host.lower().endswith(".localhost")
        try:
            found = socket.getaddrinfo("127.0.0.1" if local else host, None, flags=socket.AI_NUMERICHOST)
        except OSError:
            return
        except UnicodeError:  # a label of the name is too long
            raise TargetRefused(f"{host} is no name of a host") from None
        addresses = [str(entry[4][0]) for entry in found]
        if self._forbidden(addresses):
            raise TargetRefused(_refused(host))
        if any(self._own.has(a, port) or a in self._own.redis_hosts(port) for a in addresses):
            raise TargetRefused(_own_port(host, port))

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses to connect to, in this order. Blocks on the name server. Raises TargetRefused."""
        self.check_literal(host, port)
        addresses = self._resolved(host, port)
        if forbidden := self._forbidden(addresses):
            log.warning("webhooks: %s has addresses that are not allowed: %s", host, ", ".join(forbidden))
            raise TargetRefused(_refused(host))
        try:
            redis = {a for name in self._own.redis_hosts(port) for a in self._resolved(name, port)}
        except TargetRefused:  # not its message, which names a host of ours
            raise TargetRefused(_refused(host)) from None
        if ours := [a for a in addresses if a in redis or self._own.has(a, port)]:
            log.warning("webhooks: %s leads to port %d of our own: %s", host, port, ", ".join(ours))
            raise TargetRefused(_refused(host))
        return addresses

    def _resolved(self, host: str, port: int) -> list[str]:
        try:
            found = self._resolve(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            log.warning("webhooks: %s cannot be resolved: %s", host, reason or error)
            raise TargetRefused(_refused(host)) from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

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


def _refused(host: str) -> str:
    """One message for all reasons, so that it does not reveal names and addresses in our network."""
    return (
        f"{host} does not lead to public addresses alone, or to such as the setting "
        "MEDUSAQ_WEBHOOK_ALLOW allows, or it leads to a service of medusaq"
    )


def _own_port(host: str, port: int) -> str:
    return f"port {port} of {host} belongs to a service of medusaq itself: name another receiver"
