"""The Lua scripts in tasks/store/lua: one script is one change, whole or not at all.

The first line of a script names the files of lua/lib that it uses, as in "-- needs: base, jobs"; these
list the keys, and are put before it with those that they need themselves. A script that would take more than
five arguments takes an object, as JSON. Texts that may be long and are only stored come behind it as they
are: Redis serves nobody else while it decodes. A script that cannot run, or whose answer is late, raises
StoreUnavailable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.commands.core import Script
from redis.exceptions import NoScriptError

from common.json_text import compact
from tasks.base.errors import StoreUnavailable
from tasks.base.queue_names import sent_channel
from tasks.base.telemetry.metrics import timing_redis

Argument = str | bytes | int | None | Mapping[str, Any]

_LUA = Path(__file__).parent / "lua"
_LIBRARY = "lib/"
_NEEDS = re.compile(r"-- needs: (\w+(?:, \w+)*)\n")


class Scripts:
    """Thread-safe; for the keys below one prefix."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        database = client.connection_pool.connection_kwargs.get("db", 0)
        self._keys = [prefix, sent_channel(prefix, database)]
        self._client: Any = client
        self._scripts: dict[str, Script] = {
            name: client.register_script(text) for name, text in assemble(read_sources()).items()
        }

    def run(self, name: str, *args: Argument) -> Any:
        with answering():
            return self._scripts[name](keys=self._keys, args=[encode(arg) for arg in args])

    def run_each(self, name: str, calls: Sequence[Sequence[Argument]]) -> list[Any]:
        """One script with the arguments of each call, in one round trip."""
        script = self._scripts[name]
        with answering(), self._client.pipeline(transaction=False) as pipe:
            for args in calls:
                pipe.evalsha(script.sha, len(self._keys), *self._keys, *map(encode, args))
            try:
                return list(pipe.execute())
            except NoScriptError:  # Redis has been restarted: one that did run is safe to repeat
                return [script(keys=self._keys, args=[encode(arg) for arg in args]) for args in calls]


def encode(argument: Argument) -> str | bytes | int:
    """An object as JSON, without its fields that are None: they would be cjson.null, which is true in Lua.

    By itself None is "": an argument of a script is a text.
    """
    if argument is None:
        return ""
    if isinstance(argument, str | bytes | int):
        return argument
    fields = {name: value for name, value in argument.items() if value is not None}
    return compact(fields)


def read_sources() -> dict[str, str]:
    """The text of each file by its path, as in "jobs/create" and "lib/jobs"."""
    return {
        path.relative_to(_LUA).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
        for path in _LUA.glob("*/*.lua")
    }


def assemble(sources: Mapping[str, str]) -> dict[str, str]:
    """Each script with the libraries that it needs before it, each of them behind those that it needs itself.

    Raises ValueError for a script that names no library, for one that is not there, and for a circle.
    """
    scripts = [name for name in sources if not name.startswith(_LIBRARY)]
    for name in scripts:
        if not needs(sources[name]):
            raise ValueError(f"{name}.lua: the first line must name the libraries that it needs")
    return {name: "".join(sources[part] for part in _in_order(sources, name, ())) for name in scripts}


def needs(source: str) -> list[str]:
    """The libraries that a script or a library names; none without such a line."""
    found = _NEEDS.match(source)
    return found[1].split(", ") if found else []


def _in_order(sources: Mapping[str, str], name: str, users: tuple[str, ...]) -> list[str]:
    """The file of this name behind all that it needs. users: the files on the way to it."""
    if name in users:
        raise ValueError(f"{name}.lua needs itself, through {', '.join(users[users.index(name) :])}")
    if name not in sources:
        raise ValueError(f"{users[-1]}.lua needs {name}.lua, which is not there")
    parts: dict[str, None] = {}
    for library in needs(sources[name]):
        parts.update(dict.fromkeys(_in_order(sources, _LIBRARY + library, (*users, name))))
    return [*parts, name]


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """A hash as Redis lists it, or names and values that a script returns."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


@contextmanager
def answering() -> Iterator[None]:
    """Turn any failure of Redis into StoreUnavailable."""
    try:
        with timing_redis():
            yield
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis: {error}") from error
