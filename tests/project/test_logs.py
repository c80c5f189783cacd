"""Logs as JSON from real processes: ids as fields, and neither prompts nor passwords in any of them."""

from __future__ import annotations

import contextvars
import itertools
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tasks.base.json_logs import JsonLines, about, about_request
from tasks.base.settings import redacted
from tests.cli.helpers.running import COMMAND
from tests.support.forking.forks import start
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import SCRIPTED, environment, wait_until

PROMPT, PASSWORD = "swordfish", "open-sesame"
JOB, BATCH = "job_" + "0a" * 16, "batch_" + "1b" * 16


def formatted(message: str, *args: object, **fields: Any) -> dict[str, Any]:
    record = logging.LogRecord("here", logging.WARNING, __file__, 1, message, args, None)
    vars(record).update(fields)
    line = JsonLines().format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_ids_are_fields() -> None:
    plain = formatted("no ids, but a line\nbreak and an é")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00", plain.pop("time"))
    assert plain == {"level": "WARNING", "logger": "here", "message": "no ids, but a line\nbreak and an é"}
    assert formatted("dropped %s", JOB)["job_id"] == JOB
    assert formatted("engine request %s.3 ended", JOB)["job_id"] == JOB
    both = formatted("%s has no room", BATCH)
    assert (both["batch_id"], "job_id" in both) == (BATCH, False)
    line = formatted("handed back job_%s-17", "1b" * 16)
    assert (line["job_id"], line["batch_id"]) == (f"job_{'1b' * 16}-17", BATCH)
    assert "job_id" not in formatted("%s and job_%s", JOB, "2c" * 16), "of several, none"


def test_what_a_job_logs_is_of_that_job() -> None:
    with about(JOB):
        assert formatted("something broke")["job_id"] == JOB
    assert "job_id" not in formatted("something broke")


def test_what_a_request_logs_has_its_id() -> None:
    def in_a_request() -> dict[str, Any]:
        about_request("req_1")
        return formatted("something broke in %s", JOB)

    line = contextvars.copy_context().run(in_a_request)
    assert (line["request_id"], line["job_id"]) == ("req_1", JOB)
    assert "request_id" not in formatted("something broke")


def test_fields_that_others_add_are_left_out() -> None:
    """Celery's have the beginning of the prompt."""
    assert PROMPT not in str(formatted("received", data={"args": PROMPT}))


def test_an_exception_is_one_line() -> None:
    try:
        raise ValueError("of\ntwo lines")
    except ValueError:
        found = formatted("broken", exc_info=sys.exc_info())
    assert "two lines" in found["exc_info"]


def test_passwords_in_addresses() -> None:
    assert redacted("rediss://me:open-sesame@host:6380/1") == "rediss://me:***@host:6380/1"
    assert redacted("redis://127.0.0.1:6379/0") == "redis://127.0.0.1:6379/0"


@pytest.mark.stack
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_real_processes_at_their_most_talkative(
    own_redis: RedisServer, tmp_path: Path, log_format: str
) -> None:
    with redis.Redis(port=own_redis.port) as client:
        client.config_set("requirepass", PASSWORD)
    settings = fast_settings(own_redis, log_format=log_format, log_level="DEBUG", port=free_port())
    url = f"redis://:{PASSWORD}@127.0.0.1:{own_redis.port}/0"
    chosen = settings.model_copy(update={"redis_url": url, "engine_factory": SCRIPTED})
    running, logs = [], {}
    try:
        for service in ("gateway", "worker", "io"):
            logs[service] = tmp_path / f"{service}.log"
            with logs[service].open("wb") as out:
                command = [sys.executable, *COMMAND, service]
                running.append(
                    start(command, tmp_path, environment(chosen), stdout=out, stderr=subprocess.STDOUT)
                )
        gateway = f"http://127.0.0.1:{settings.port}"
        wait_until(
            lambda: _ready(gateway), 40, report=lambda: str([log.read_text() for log in logs.values()])
        )
        job = httpx.post(f"{gateway}/v1/jobs", json={"prompt": PROMPT}, headers={"Prefer": "wait=20"}).json()
        failed = httpx.post(
            f"{gateway}/v1/jobs", json={"prompt": f"{PROMPT} fail=broken"}, headers={"Prefer": "wait=20"}
        ).json()
        assert (job["status"], failed["status"]) == ("succeeded", "failed")
        body = {"custom_id": "a", "method": "POST", "url": "/v1/jobs", "body": {"prompt": PROMPT}}
        files = {"file": ("a.jsonl", json.dumps(body).encode())}
        file_id = httpx.post(f"{gateway}/v1/files", data={"purpose": "batch"}, files=files).json()["id"]
        asked = {"input_file_id": file_id, "endpoint": "/v1/jobs", "completion_window": "24h"}
        batch = httpx.post(f"{gateway}/v1/batches", json=asked).json()["id"]
        wait_until(lambda: httpx.get(f"{gateway}/v1/batches/{batch}").json()["status"] == "completed")
        own_redis.stop()  # whoever complains of it knows its address
        assert httpx.get(f"{gateway}/v1/jobs").status_code == 503
        wait_until(lambda: all("refused" in log.read_text() for log in logs.values()))
        said = {name: log.read_text().rpartition("\n")[0].splitlines() for name, log in logs.items()}
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)
    for service, log in logs.items():
        text = log.read_text()
        assert PROMPT not in text, service
        assert PASSWORD not in text, service
    if log_format == "json":
        lines = {name: [json.loads(line) for line in each] for name, each in said.items()}
        for line in itertools.chain(*lines.values()):
            assert {"time", "level", "logger", "message"} <= line.keys()
        jobs = {line.get("job_id") for line in lines["worker"]}
        assert {job["id"], failed["id"]} <= jobs
        assert batch in {line.get("batch_id") for line in lines["worker"]}


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=20).is_success
    except httpx.TransportError:
        return False
