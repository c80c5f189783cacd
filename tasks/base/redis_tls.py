"""The options in the query of a Redis URL, named as in redis-py: TLS and the socket timeout.

They are removed from the URL and passed on as keyword arguments: kombu does not read all of them from a URL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

# For connecting and for each response: longer than the pauses of a busy server. Then clients get 503.
TIMEOUT_S = 3.0
REQUIRED, NONE = "required", "none"


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError(f"{text} is not a file")
    return text


def _verification(text: str) -> str:
    if text not in (REQUIRED, NONE):
        raise ValueError(f"must be {REQUIRED} or {NONE}")
    return text


def _seconds(text: str) -> float:
    seconds = float(text)  # raises ValueError
    if not 0 < seconds < float("inf"):
        raise ValueError("must be seconds above 0")
    return seconds


TLS_OPTIONS: dict[str, Callable[[str], str]] = {
    "ssl_ca_certs": _file,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
    "ssl_cert_reqs": _verification,
}
TIMEOUT = "socket_timeout"
OPTIONS = (*TLS_OPTIONS, TIMEOUT)
SENTINEL_PASSWORD = "sentinel_password"  # stays in the address: tasks/base/sentinel_url.py reads it


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """address: the URL without these options. tls: keyword arguments of redis-py, and of Celery's
    broker_use_ssl; empty unless the URL begins with rediss. JSON values only: workers report their settings.
    """

    address: str
    timeout_s: float = TIMEOUT_S
    tls: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str) -> RedisOptions:
        """Parse a URL; raises ValueError for an unknown or invalid option."""
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        ours = {name: given.pop(name) for name in OPTIONS if name in given}
        others = {SENTINEL_PASSWORD} if parts.scheme.endswith("+sentinel") else set()
        if unknown := sorted(given.keys() - others):
            raise ValueError(f"{unknown[0]} is not an option of it; the options are {', '.join(OPTIONS)}")
        address = parts._replace(query=urlencode(given)).geturl()
        timeout_s = _checked(TIMEOUT, _seconds, ours.pop(TIMEOUT)) if TIMEOUT in ours else TIMEOUT_S
        if not parts.scheme.startswith("rediss"):
            if ours:
                raise ValueError(f"{next(iter(ours))} is for rediss://, and this address is without TLS")
            return cls(address, timeout_s)
        tls = {name: _checked(name, TLS_OPTIONS[name], text) for name, text in ours.items()}
        tls.setdefault("ssl_cert_reqs", REQUIRED)
        return cls(address, timeout_s, {**tls, "ssl_check_hostname": tls["ssl_cert_reqs"] == REQUIRED})


def _checked(name: str, check: Callable[[str], Any], text: str) -> Any:
    try:
        return check(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
