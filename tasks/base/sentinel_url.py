"""The URL of a Redis service whose current master is found by Sentinels.

redis+sentinel://[user:password@]host:port,host:port/SERVICE[/database][?sentinel_password=...]

With rediss+sentinel:// the Sentinels and the servers are reached over TLS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SCHEME, TLS_SCHEME = "redis+sentinel", "rediss+sentinel"
DEFAULT_PORT = 26379


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """A parsed URL. username, password: of the Redis servers."""

    hosts: tuple[tuple[str, int], ...]
    service: str
    database: int
    username: str | None
    password: str | None
    sentinel_password: str | None
    tls: bool = False

    @classmethod
    def of(cls, url: str) -> SentinelUrl | None:
        """None for a URL of another scheme; raises ValueError for an invalid Sentinel URL."""
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
        """redis-py options of the connections to Sentinels: the given timeouts and TLS, and the password."""
        own = {name: value for name, value in options.items() if name.startswith(("socket_", "ssl_"))}
        if self.tls:
            own["ssl"] = True
        secret = self.sentinel_password
        from tasks.base.credentials import HiddenPassword  # redis-py, which no client of the gateway needs

        return own if secret is None else {**own, "credential_provider": HiddenPassword(secret)}

    def client_options(self) -> dict[str, Any]:
        """redis-py options of the connections to the master."""
        return {"db": self.database, "username": self.username, "password": self.password, "ssl": self.tls}

    def broker_url(self) -> str:
        """Celery's URL. Each Sentinel has login and database, since Celery may connect through any one."""
        login = ""
        if self.password is not None:
            login = f"{quote(self.username or '', safe='')}:{quote(self.password, safe='')}@"
        hosts = ((f"[{host}]" if ":" in host else host, port) for host, port in self.hosts)  # IPv6
        return ";".join(f"sentinel://{login}{host}:{port}/{self.database}" for host, port in hosts)


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"{text!r} must be host:port")
    return parts.hostname, parts.port or DEFAULT_PORT
