"""The address of a Redis behind Sentinels, which know what server is the master now.

redis+sentinel://[user:password@]host:port,host:port/SERVICE[/database][?sentinel_password=...]

With rediss+sentinel:// the Sentinels and the servers are reached over TLS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tasks.base.credentials import HiddenPassword

SCHEME, TLS_SCHEME = "redis+sentinel", "rediss+sentinel"
DEFAULT_PORT = 26379


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """User and password are those of the Redis servers."""

    hosts: tuple[tuple[str, int], ...]
    service: str
    database: int
    username: str | None
    password: str | None
    sentinel_password: str | None
    tls: bool = False

    @classmethod
    def of(cls, url: str) -> SentinelUrl | None:
        """None for a URL of another kind; raises ValueError for a bad one of this."""
        parts = urlsplit(url)
        if parts.scheme not in (SCHEME, TLS_SCHEME):
            return None
        login, _, hosts = parts.netloc.rpartition("@")
        username, _, password = login.partition(":")
        service, _, database = parts.path.strip("/").partition("/")
        options = dict(parse_qsl(parts.query))
        whole = service and hosts and (database or "0").isdigit()
        if not whole or options.keys() - {"sentinel_password"}:
            raise ValueError(f"must be {SCHEME}://[user:password@]host:port,host:port/SERVICE[/database]")
        return cls(
            tuple(_host(text) for text in hosts.split(",")),
            service,
            int(database or 0),
            unquote(username) or None,
            unquote(password) or None,
            options.get("sentinel_password"),
            parts.scheme == TLS_SCHEME,
        )

    def finder_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Of the connections to the Sentinels themselves: of those given the time-outs and what TLS needs."""
        own = {name: value for name, value in options.items() if name.startswith(("socket_", "ssl_"))}
        if self.tls:
            own["ssl"] = True
        secret = self.sentinel_password
        return own if secret is None else {**own, "credential_provider": HiddenPassword(secret)}

    def client_options(self) -> dict[str, Any]:
        """Of the connections to the master."""
        return {"db": self.database, "username": self.username, "password": self.password, "ssl": self.tls}

    def broker_url(self) -> str:
        """As Celery takes it: each Sentinel with everything, since it goes on with any of them."""
        login = ""
        if self.password is not None:
            login = f"{quote(self.username or '', safe='')}:{quote(self.password, safe='')}@"
        return ";".join(f"sentinel://{login}{host}:{port}/{self.database}" for host, port in self.hosts)


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"{text!r} is no host:port")
    return parts.hostname, parts.port or DEFAULT_PORT
