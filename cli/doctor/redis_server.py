"""Checks of Redis: reachability, durability, memory and clock."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import redis

from cli.doctor.findings import Finding, fail, ok, warn
from common.units import size
from tasks.base.errors import StoreUnavailable
from tasks.base.settings import Settings, redacted
from tasks.store.database import Database, connect

OLDEST = (6, 2)  # older versions are untested
CLOCK_WARN_S, CLOCK_FAIL_S = 1.0, 30.0  # deadlines are compared with both clocks
SLOW_S = 0.05  # each request to the gateway makes a few exchanges
TRIES = 5
NEARLY_FULL = 0.85


def reachable(settings: Settings) -> Iterator[Finding]:
    """All checks of Redis if it answers, else one finding."""
    shown = redacted(settings.redis_url)
    client: Any = connect(settings)
    try:
        took, ahead = min(_round_trip(client) for _ in range(TRIES))
        info = client.info()
    except redis.RedisError as error:
        yield fail("redis", f"{shown} does not answer: {_short(error)}", _mend(error))
        client.close()
        return
    with client:
        yield _latency(shown, took)
        yield version(info)
        yield from durability(info)
        yield memory(info)
        yield clocks(ahead)
        yield _connections(settings)
        yield _writes(client, settings)


def _round_trip(client: Any) -> tuple[float, float]:
    """Latency and clock offset in seconds. Uses TIME, since PING fails when Redis' disk is full."""
    began = time.time()
    seconds, micros = client.time()
    ended = time.time()
    return ended - began, seconds + micros / 1e6 - (began + ended) / 2


def _short(error: redis.RedisError) -> str:
    return str(error).splitlines()[0].rstrip(".")


def _mend(error: redis.RedisError) -> str:
    text = str(error)
    if isinstance(error, redis.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return "put the password into MEDUSAQ_REDIS_URL: redis://:PASSWORD@HOST:PORT/0"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "add ?ssl_ca_certs=FILE to MEDUSAQ_REDIS_URL: certificates that vouch for the host in it"
    if "LOADING" in text or isinstance(error, redis.BusyLoadingError):
        return "wait until Redis has loaded its data"
    if isinstance(error, redis.TimeoutError):
        return "check whether Redis hangs, or a firewall drops the packets"
    return "start Redis, or set MEDUSAQ_REDIS_URL to its address"


def _latency(shown: str, took: float) -> Finding:
    if took > SLOW_S:
        what = f"{shown} takes {took * 1000:.0f} ms to answer"
        return warn("redis", what, "run Redis nearer to the gateway: every request makes several round trips")
    return ok("redis", f"{shown} answers in {took * 1000:.1f} ms")


def version(info: Mapping[str, Any]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    text = str(info.get("valkey_version") or info["redis_version"])
    speaks = tuple(int(number) for number in re.findall(r"\d+", str(info["redis_version"]))[:2])
    if speaks < OLDEST:
        return fail(
            "redis version", f"{name} {text} is too old", "upgrade it to Redis 7 or Valkey 8, or newer"
        )
    return ok("redis version", f"{name} {text}")


def durability(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether accepted jobs survive a restart and a full memory."""
    if not info.get("aof_enabled"):
        what = "without an append-only file a restart loses accepted jobs"
        yield fail("redis log", what, "start it with --appendonly yes, or say so in redis.conf")
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield fail("redis log", "its append-only file cannot be written", "make room on its disk")
    else:
        yield ok("redis log", "every write goes to its append-only file")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        yield ok("redis eviction", "a full memory refuses new jobs, and forgets none")
        return
    what = f"with {policy} a full memory makes it forget jobs"
    mend = "redis-cli config set maxmemory-policy noeviction, and the same in redis.conf"
    yield fail("redis eviction", what, mend) if info.get("maxmemory") else warn("redis eviction", what, mend)


def memory(info: Mapping[str, Any]) -> Finding:
    used, most = int(info["used_memory"]), int(info.get("maxmemory") or 0)
    if most and used > most * NEARLY_FULL:
        what = f"{size(used)} of {size(most)} are used"
        return warn("redis memory", what, "raise maxmemory, or shorten MEDUSAQ_RESULT_TTL_S")
    return ok("redis memory", f"{size(used)} used of {size(most) if most else 'no limit'}")


def clocks(ahead_s: float) -> Finding:
    """ahead_s: seconds that Redis' clock is ahead of this machine's."""
    if abs(ahead_s) < CLOCK_WARN_S:
        return ok("clocks", "this machine and Redis agree")
    grade = fail if abs(ahead_s) >= CLOCK_FAIL_S else warn
    what = f"the clock of Redis differs from this machine's by {abs(ahead_s):.1f} s, and deadlines with it"
    return grade("clocks", what, "run an NTP client on both machines")


def _connections(settings: Settings) -> Finding:
    """Whether io workers can see that a model worker was killed."""
    database = Database.connect(settings, name=f"doctor:{uuid.uuid4().hex}")
    try:
        if database.is_listed():
            return ok("redis connections", "it lists them by name, so that killed workers are found soon")
    except StoreUnavailable as error:
        return warn("redis connections", f"it does not list them: {error}", "look at its log")
    finally:
        database.close()
    what = "it does not list them by name: jobs of killed workers wait for their leases"
    return warn(
        "redis connections", what, "let this user have +client|list, without a proxy that shares connections"
    )


def _writes(client: Any, settings: Settings) -> Finding:
    key = f"{settings.key_prefix}doctor:{uuid.uuid4().hex}"
    try:
        client.set(key, "", px=1000)
        client.delete(key)
    except redis.RedisError as error:
        return fail("redis writes", f"it refuses to write: {_short(error)}", _mend_writes(error))
    return ok("redis writes", "it takes what is written to it")


def _mend_writes(error: redis.RedisError) -> str:
    if isinstance(error, redis.ReadOnlyError):
        return "set MEDUSAQ_REDIS_URL to the primary: this is a replica"
    if isinstance(error, redis.OutOfMemoryError):
        return "raise its maxmemory, and shorten MEDUSAQ_RESULT_TTL_S"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return "let this user write keys that begin with MEDUSAQ_KEY_PREFIX"
    return "see its log: most often its disk is full"
