"""The Lua scripts in tasks/lua: one script is one change, whole or not at all.

common.lua and outbox.lua, put before each, list the keys. A script that cannot run, or whose answer
is late, raises StoreUnavailable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.commands.core import Script

from tasks.errors import StoreUnavailable
from tasks.figures import timing_redis

_LUA = Path(__file__).parent / "lua"
_SHARED = ("common", "outbox")


class Scripts:
    """Thread-safe; for the keys below one prefix."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._prefix = prefix
        shared = "".join((_LUA / f"{name}.lua").read_text(encoding="utf-8") for name in _SHARED)
        self._scripts: dict[str, Script] = {
            path.stem: client.register_script(shared + path.read_text(encoding="utf-8"))
            for path in _LUA.glob("*.lua")
            if path.stem not in _SHARED
        }

    def run(self, name: str, *args: str | int) -> Any:
        with answering():
            return self._scripts[name](keys=[self._prefix], args=args)


def pairs(flat: Sequence[str]) -> dict[str, str]:
    """A hash as Redis lists it."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


@contextmanager
def answering() -> Iterator[None]:
    """Turn any failure of Redis into StoreUnavailable."""
    try:
        with timing_redis():
            yield
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis: {error}") from error
