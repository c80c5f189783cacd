"""Webhooks: parsed URLs, states of deliveries, and signatures (Standard Webhooks).

The schema of requests is in tasks/schema/webhook_request.py, so that the command loads this module quickly.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address

PORTS = {"http": 80, "https": 443}
MAX_URL = 2000  # characters
SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
LEAST_SECRET, MOST_SECRET = 24, 64  # bytes, by the specification
# Rejects what URL parsers read differently: a user, a fragment, a backslash, escapes in the host or a dot at
# its end, characters beyond ASCII.
_URL = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<host>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*))(?::(?P<port>\d{1,5}))?"
    r"(?P<path>/[a-z0-9\-._~!$&'()*+,;=:@%/]*)?(?P<query>\?[a-z0-9\-._~!$&'()*+,;=:@%/?]*)?",
    re.IGNORECASE | re.ASCII,
)
_FORM = "must look like https://example.com/path, in ASCII, without user, password or fragment"


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. host: a name or an address, IPv6 without brackets; path: with the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def receiver(self) -> str:
        """Host and port, by which connections are limited: many URLs may lead to one server."""
        return f"{self.host.lower()}:{self.port}"

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def target_of(url: str) -> Target:
    """Parse a URL; raises ValueError with the reason."""
    match = _URL.fullmatch(url)
    if match is None or len(url) > MAX_URL:
        raise ValueError(_FORM if match is None else f"must have at most {MAX_URL} characters")
    scheme = match["scheme"].lower()
    port = int(match["port"] or PORTS[scheme])
    if not 0 < port < 2**16:
        raise ValueError("has no such port")
    if match["v6"] is not None:
        try:
            IPv6Address(match["v6"])
        except ValueError:
            raise ValueError(_FORM) from None
    return Target(scheme, match["v6"] or match["host"], port, (match["path"] or "/") + (match["query"] or ""))


class DeliveryStatus(StrEnum):
    """pending until an attempt succeeded, all failed, or the receiver responded with 410 (disabled)."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL, and the events that are sent to it."""

    url: str
    events: tuple[str, ...]

    def stored(self) -> str:
        return json.dumps({"url": self.url, "to": target_of(self.url).receiver, "events": self.events})

    def to_json(self) -> dict[str, object]:
        return {"url": self.url, "events": list(self.events)}

    @classmethod
    def from_stored(cls, text: str) -> Webhook:
        fields = json.loads(text)
        return cls(fields["url"], tuple(fields["events"]))


def new_secret() -> str:
    """A random signing secret in the format of Standard Webhooks."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def secret_key(secret: str) -> bytes:
    """The decoded key of a secret; raises ValueError, whose message does not contain the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not (secret.startswith(SECRET_PREFIX) and LEAST_SECRET <= len(key) <= MOST_SECRET):
        raise ValueError(f"must be {SECRET_PREFIX} and {LEAST_SECRET} to {MOST_SECRET} bytes in base64")
    return key


def signed(message_id: str, at: int, body: bytes, keys: Sequence[str]) -> dict[str, str]:
    """The headers that sign a message with each of these secrets; at: Unix seconds of this attempt."""
    content = f"{message_id}.{at}.".encode() + body
    digests = [hmac.digest(secret_key(secret), content, hashlib.sha256) for secret in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }
