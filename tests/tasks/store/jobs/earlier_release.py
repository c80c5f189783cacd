"""Jobs of every kind, and what was stored of them by the release before the scripts sent messages.

There the client sent each message after its script, and a job did not name the gateways that wait for it.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from tasks.base.settings import Settings
from tasks.records.job import NewJob, Priority
from tasks.records.webhook import Webhook
from tasks.store.jobs import JobStore

EARLIER = Path(__file__).parent / "earlier_release.json"
MODEL = "scripted"  # that the tests' engine serves
KEY = "key_a"
BATCH_LINES = 2
VARIANTS = ({"seed": 1}, {"seed": 2})  # of a pair that is made together
DEFERRED = ("deferred", "deferred too")
RUNNING = ("running", "lost")  # of the second the lease has run out
HOOK = Webhook("http://127.0.0.1:9/hook", ("job.succeeded",))  # refused without a connection
PREFIX = "PREFIX:"  # stands in the file for that of an installation
TIME = re.compile(r"\b[12]\d{12}\b")  # ms
OF_A_MOMENT = re.compile(r"(_kombu|leader$|led_by$|\w+_room$|models$)")  # keys that are made anew


def orders() -> dict[str, NewJob]:
    """By their prompts; the deferred ones are the last."""
    later = time.time() + 3600
    fields: dict[str, dict[str, Any]] = {
        "plain": {},
        "of a key": {"owner": KEY, "metadata": {"run": "1"}, "deadline": later, "webhook": HOOK},
        "of a model": {"model": MODEL},
        "streamed": {"streaming": True, "keep_s": 60.0},
        "bulk": {"priority": Priority.BULK, "owner": KEY},
        "running": {"streaming": True, "webhook": HOOK},
        "lost": {"priority": Priority.BULK, "deadline": later},
        "deferred": {"owner": KEY, "deadline": later},
        "deferred too": {"owner": "b"},
    }
    return {
        prompt: NewJob({"prompt": prompt, "seed": 1, "max_tokens": 16}, id=f"job_{n:032x}", **more)
        for n, (prompt, more) in enumerate(fields.items(), 1)
    }


def pair() -> NewJob:
    return NewJob({"prompt": "pair", "max_tokens": 16}, id=f"job_{99:032x}")


def stored(store: JobStore) -> dict[str, Any]:
    """All keys, without the prefix."""
    client, prefix = store.db.redis, store.db.prefix
    read = {
        "string": client.get,
        "hash": client.hgetall,
        "set": lambda key: sorted(client.smembers(key)),
        "zset": lambda key: {
            member: f"{score:.0f}" for member, score in client.zrange(key, 0, -1, withscores=True)
        },
        "list": lambda key: client.lrange(key, 0, -1),
    }
    kinds = {key: client.type(key) for key in sorted(client.scan_iter(f"{prefix}*"))}
    keys = {
        f"{kind} {key.removeprefix(prefix)}": read[kind](key)
        for key, kind in kinds.items()
        if not OF_A_MOMENT.match(key.removeprefix(prefix))
    }
    return dict(json.loads(json.dumps(keys).replace(prefix, PREFIX)))


def restore_earlier(settings: Settings, store: JobStore) -> None:
    """What the earlier release stored, as if a moment ago."""
    now = time.time() * 1000
    text = EARLIER.read_text().replace(PREFIX, settings.key_prefix)
    text = re.sub(r"NOW([+-]\d+)", lambda found: f"{now + int(found[1]):.0f}", text)
    with store.db.redis.pipeline() as pipe:
        for name, value in json.loads(text).items():
            kind, _, key = name.partition(" ")
            key = settings.key_prefix + key
            if kind == "string":
                pipe.set(key, value)
            elif kind == "hash":
                pipe.hset(key, mapping=value)
            elif kind == "zset":
                pipe.zadd(key, value)
            elif kind == "set":
                pipe.sadd(key, *value)
            else:
                pipe.rpush(key, *value)
        pipe.execute()
