"""A batch under way as the release before windows stored it: each of its lines that was sent is a job.

Writes batch_before_windows.json, in a checkout of that release with this file in the same place:

    git worktree add ../before 6fbe1ac
    cp tests/tasks/store/jobs/batch_before_windows.py ../before/tests/tasks/store/jobs
    cd ../before && python -m tests.tasks.store.jobs.batch_before_windows FILE
"""

from __future__ import annotations

import base64
import json
import re
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tasks.base.settings import Settings
from tasks.files.factory import make_store
from tasks.store.jobs import JobStore
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, wait_until
from tests.tasks.helpers.client import Client, line
from tests.tasks.store.jobs.earlier_release import PREFIX, TIME, stored

BEFORE = Path(__file__).parent / "batch_before_windows.json"
LINES = 80
REFUSED, FAILS = 2, 3  # numbers of lines: one that is no request, one that the engine cannot run
DELAY_S = 0.2  # of each line
COLLECTED = 8  # lines in segments, at least
OF_PROCESSES = re.compile(r"\w+ (figures|workers?\b)")  # what they say of themselves


def lines() -> list[Any]:
    made: list[Any] = [line(n, text_of(n) + f" delay={DELAY_S}") for n in range(LINES)]
    made[REFUSED] = line(REFUSED, max_tokens=-1)
    made[FAILS] = line(FAILS, "x fail=boom")
    return made


def text_of(number: int) -> str:
    return f"say {number}"


def dump(settings: Settings, store: JobStore) -> str:
    """All keys, with times from now, and all files."""
    now = time.time() * 1000
    keys = json.dumps({key: of for key, of in stored(store).items() if not OF_PROCESSES.match(key)})
    folder = Path(settings.files)
    files = {
        str(path.relative_to(folder)): base64.b64encode(path.read_bytes()).decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    keys = keys.replace(f"{socket.gethostname()}:", "here:")
    keys = TIME.sub(lambda found: f"NOW{int(found[0]) - now:+.0f}", keys)
    return json.dumps({"keys": json.loads(keys), "files": files}, indent=0)


def restore(settings: Settings, store: JobStore) -> None:
    """As if it had been stored a moment ago."""
    now = time.time() * 1000
    text = BEFORE.read_text().replace(PREFIX, settings.key_prefix)
    found = json.loads(re.sub(r"NOW([+-]\d+)", lambda time: f"{now + int(time[1]):.0f}", text))
    put = {"string": "SET", "hash": "HSET", "zset": "ZADD", "set": "SADD", "list": "RPUSH"}
    with store.db.redis.pipeline() as pipe:
        for name, value in found["keys"].items():
            kind, _, key = name.partition(" ")
            values = [value] if kind == "string" else value
            if kind == "hash":
                values = [text for pair in value.items() for text in pair]
            elif kind == "zset":
                values = [text for member, score in value.items() for text in (score, member)]
            pipe.execute_command(put[kind], settings.key_prefix + key, *values)
        pipe.execute()
    for path, content in found["files"].items():
        target = Path(settings.files, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(content))


def write(folder: Path, target: Path) -> None:
    server = RedisServer(folder / "redis")
    server.start()
    settings = fast_settings(server)
    store, files, workers = JobStore(settings), make_store(settings.files), Workers(folder)
    try:
        io, model = workers.io(settings), workers.model(settings)
        client = Client(store, files)
        batch = client.create(lines())
        key = f"{settings.key_prefix}batch:{batch.id}"
        wait_until(lambda: client.get(batch).completed >= COLLECTED and bool(store.db.redis.hlen(f"{key}")))
        wait_until(lambda: store.db.redis.llen(f"{key}:ended") > 0)
        io.kill()
        model.kill()
        target.write_text(dump(settings, store))
    finally:
        workers.close()
        files.close()
        store.close()
        server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), Path(sys.argv[1]))
