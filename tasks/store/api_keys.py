"""The store of API keys: who may send work, and how much of it. A key's id is the owner of all that it makes.

Only the SHA-256 of a key is kept. A slow hash guards passwords, which people choose and dictionaries hold; a
key is 256 random bits, which no number of guesses finds, and it is looked up at every request.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress

from common.addresses import is_loopback
from tasks.base.errors import KeyNotFound, SettingsError, StoreUnavailable
from tasks.base.settings import Settings
from tasks.records import ids
from tasks.records.api_key import Admission, ApiKey, KeyStatus, Limits, Rate
from tasks.store.database import Database
from tasks.store.scripts import answering, pairs

SECRET_PREFIX = "mq_"  # what a leaked key is recognised by, in a log or a repository
SECRET_BYTES = 32
SHOWN_CHARS = 4  # of a key's end, so that people can tell theirs apart


class KeyStore:
    """Kept in a database. Thread-safe; every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._scripts = database.scripts
        self._redis = database.redis
        self._prefix = database.prefix

    def create(self, name: str, limits: Limits) -> tuple[ApiKey, str]:
        """A new key and its secret, which is kept nowhere."""
        secret = SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        fields: dict[str, str | int] = {
            "name": name,
            "shown": f"{SECRET_PREFIX}...{secret[-SHOWN_CHARS:]}",
            "requests_per_minute": limits.requests_per_minute or "",
            "tokens_per_day": limits.tokens_per_day or "",
            "max_jobs": limits.max_jobs or "",
            "max_batches": limits.max_batches or "",
            "weight": str(limits.weight),
            "max_files": limits.max_files or "",
            "max_files_bytes": limits.max_files_bytes or "",
            "max_stored_bytes": limits.max_stored_bytes or "",
        }
        flat = (value for pair in fields.items() for value in pair)
        key_id = ids.KEY.new()
        record = self._scripts.run("keys/create", key_id, digest(secret), *flat)
        return ApiKey.from_hash(pairs(record)), secret

    def list(self) -> list[ApiKey]:
        """All that were ever made, the oldest first."""
        return [
            ApiKey.from_hash(pairs(record), **pairs(counts))
            for record, *counts in self._scripts.run("keys/list")
        ]

    def revoke(self, key_id: str) -> None:
        """Refuse it from the next request on, and end those under way within seconds; jobs and batches that
        it has sent go on. Raises KeyNotFound."""
        if not (ids.KEY.matches(key_id) and self._scripts.run("keys/revoke", key_id)):
            raise KeyNotFound(key_id)

    def revoked(self, key_ids: Collection[str]) -> set[str]:
        """Those of them that do not stand any more, in one round trip."""
        with answering(), self._redis.pipeline(transaction=False) as pipe:
            for key_id in key_ids:
                pipe.hmget(f"{self._prefix}key:{key_id}", "id", "revoked_at")
            records = pipe.execute()
        return {
            key_id
            for key_id, (known, revoked_at) in zip(key_ids, records, strict=True)
            if not known or revoked_at
        }

    def status(self) -> KeyStatus:
        """NEVER, NONE, or UNKNOWN where keys stand."""
        return KeyStatus(self._scripts.run("keys/admit", "")[0])

    def admit(self, secret: str) -> Admission:
        """Count a request of whoever holds the secret, '' for nobody, unless it is one too many."""
        answer, *rest = self._scripts.run("keys/admit", digest(secret) if secret else "")
        if not rest:
            return Admission(KeyStatus(answer))
        return _admission(KeyStatus(answer), pairs(rest))


def digest(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def check_bind(settings: Settings) -> None:
    """Raise SettingsError for an address that check_keys refuses.

    With Redis away nobody knows: the gateway starts, and refuses each request until a key comes with it.
    """
    with suppress(StoreUnavailable):
        check_keys(settings)


def check_keys(settings: Settings) -> None:
    """Raise SettingsError for an address beyond loopback while there are no API keys; StoreUnavailable."""
    if settings.allow_open or is_loopback(settings.reached_at):
        return
    database = Database.connect(settings)
    try:
        status = KeyStore(database).status()
    finally:
        database.close()
    if status is not KeyStatus.UNKNOWN:
        variable = "MEDUSAQ_PUBLISH_ADDRESS" if settings.publish_address else "MEDUSAQ_HOST"
        raise SettingsError(
            f"{variable}: {settings.reached_at} is reachable from other machines and there are no API keys; "
            "make one with `medusaq keys create NAME`, use 127.0.0.1, or set MEDUSAQ_ALLOW_OPEN=1 behind a "
            "proxy that checks who calls"
        )


def _admission(status: KeyStatus, fields: Mapping[str, str]) -> Admission:
    return Admission(
        status,
        fields["id"],
        _rate(fields, "requests"),
        _rate(fields, "tokens"),
        int(fields["next_ms"]) / 1000,
    )


def _rate(fields: Mapping[str, str], name: str) -> Rate | None:
    if not fields[name]:
        return None
    return Rate(int(fields[name]), int(fields[f"{name}_left"]), int(fields[f"{name}_ms"]) / 1000)
