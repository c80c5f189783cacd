"""Makes the state folder of an earlier `medusaq up`: `python -m tests.release.earlier_state REVISION`.

The code of that revision runs with its scripted engine, answers jobs and batches, and is stopped in the
middle of others. The folder and what its gateway said last become an archive in tests/release/states, which
test_upgrade.py starts the present code on. Records are kept for ever, so that the archive does not age.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from medusaq import Batch, Client, Job, JobFailed
from tests.support.medusaq_up import medusaq_up
from tests.support.servers import free_port
from tests.support.workers import ROOT

STATES = Path(__file__).parent / "states"
STATE, EXPECTED = ".medusaq", "expected.json"
LEFT_OUT = ("logs", "lock")  # of the state folder
FOR_EVER_S = 3_000_000_000
LAST_DEADLINE = 4_000_000_000.0  # Unix seconds, in the year 2096
READY_S, STOP_S = 60.0, 60.0
SETTINGS = {
    "MEDUSAQ_ENGINE_FACTORY": "tests.support.scripted:load",
    "MEDUSAQ_RESULT_TTL_S": str(FOR_EVER_S),
    "MEDUSAQ_DRAIN_S": "0.5",
}
TABLE = "name,text\na,first\nb,second fail=boom\n"


def checked_out(commit: str, folder: Path) -> Path:
    """Its files, and nothing of git."""
    code = folder / "code"
    code.mkdir()
    content = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", code], input=content, check=True)
    return code


def make(revision: str) -> Path:
    """The archive."""
    with tempfile.TemporaryDirectory() as temporary:
        code, work = checked_out(revision, Path(temporary)), Path(temporary) / "work"
        work.mkdir()
        said = _run(code, work)
        STATES.mkdir(exist_ok=True)
        made = STATES / f"{revision[:7]}.tar.gz"
        with tarfile.open(made, "w:gz") as archive:
            for path in sorted((work / STATE).iterdir()):
                if path.name not in LEFT_OUT:
                    archive.add(path, f"{STATE}/{path.name}")
            info = tarfile.TarInfo(EXPECTED)
            encoded = json.dumps(said, ensure_ascii=False).encode()
            info.size = len(encoded)
            archive.addfile(info, io.BytesIO(encoded))
        return made


def _run(code: Path, work: Path) -> dict[str, Any]:
    """What the gateway of the earlier code said of its jobs and batches, before it was stopped."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MEDUSAQ_")}
    up = medusaq_up(
        [sys.executable, "-P", "-m", "cli"],
        free_port(),
        ["--no-flower", "--state-dir", STATE],
        log=work / "up.log",
        env={**env, **SETTINGS, "PYTHONPATH": str(code)},
        ready_s=READY_S,
        stop_s=STOP_S,
    )
    with up as running, Client(running.url) as client:
        return _used(client, work)


def _used(client: Client, work: Path) -> dict[str, Any]:
    ended = [_end(client, prompt) for prompt in ("hello", "many words here stream=5", "x fail=boom")]
    cancelled = client.submit("cancelled delay=300")
    client.cancel(cancelled)
    ended.append(_end_of(client, cancelled))
    lines = client.wait(
        client.submit_batch(_lines(work, 8), deadline=LAST_DEADLINE, metadata={"which": "lines"})
    )
    table = client.wait(client.submit_batch(_table(work), template="{{ text }}", deadline=LAST_DEADLINE))
    under_way = client.submit_batch(_lines(work, 24, " delay=1"), deadline=LAST_DEADLINE)
    while not 0 < under_way.completed < under_way.total:
        time.sleep(0.05)
        under_way = client.batch(under_way.id)
    waiting = [client.submit(f"later {n} delay=2", metadata={"n": str(n)}) for n in range(12)]
    return {
        "ended": [dict(job.record) for job in ended],
        "waiting": [job.id for job in waiting],
        "lines": _said(client, lines),
        "table": _said(client, table) | {"rows": list(client.rows(table))},
        "under_way": {"id": under_way.id, "total": under_way.total, "completed": under_way.completed},
    }


def _end(client: Client, prompt: str) -> Job:
    return _end_of(client, client.submit(prompt, metadata={"made": "before"}))


def _end_of(client: Client, job: Job) -> Job:
    try:
        return client.wait(job)
    except JobFailed as failed:
        return failed.job


def _said(client: Client, batch: Batch) -> dict[str, Any]:
    results = {"output": list(client.output(batch)), "errors": list(client.errors(batch))}
    return {"record": dict(batch.record), **results}


def _lines(work: Path, count: int, script: str = "") -> Path:
    path = work / "lines.jsonl"
    url = "/v1/chat/completions"
    with path.open("w", encoding="utf-8") as file:
        for n in range(count):
            content = f"line {n}{' fail=boom' if n == 3 else ''}{script}"
            body = {"messages": [{"role": "user", "content": content}]}
            file.write(json.dumps({"custom_id": f"c{n}", "method": "POST", "url": url, "body": body}) + "\n")
    return path


def _table(work: Path) -> Path:
    path = work / "table.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


if __name__ == "__main__":
    [revision] = sys.argv[1:]
    made = make(revision)
    print(f"{made}: {made.stat().st_size / 1e3:.0f} kB")
