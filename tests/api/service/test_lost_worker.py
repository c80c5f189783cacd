"""Listeners whose worker is killed: a second attempt begins anew, and nothing is told twice."""

from __future__ import annotations

import threading

import httpx
import pytest
from openai import OpenAI

from tasks.base.settings import Settings
from tests.api.routes.test_job_events import Event, events, submit, text, told, whole
from tests.support.workers import Workers, wait_until

pytestmark = pytest.mark.stack

SCRIPT = "one two three stream=8 delay=4"


def test_events_and_streams(
    http: httpx.Client, client: OpenAI, gateway_settings: Settings, workers: Workers
) -> None:
    workers.io(gateway_settings)
    first = workers.model(gateway_settings)
    job_id = submit(http, SCRIPT)
    wait_until(lambda: http.get(f"/v1/jobs/{job_id}").json()["status"] == "running")
    seen: list[Event] = []
    chunks: list[str] = []

    def listen() -> None:
        seen.extend(events(http, job_id))

    def stream() -> None:
        for chunk in client.completions.create(model="scripted", prompt=SCRIPT, stream=True, logprobs=0):
            chunks.append(chunk.choices[0].text)

    threads = [threading.Thread(target=target) for target in (listen, stream)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(chunks) > 3 and len(seen) > 3)
    first.kill()
    assert len(chunks) < 24
    workers.model(gateway_settings)
    for thread in threads:
        thread.join(30)
    assert seen[-1][1]["attempts"] == 2
    seen_for_sure = [(name, data) for name, data in seen if data.get("status") != "queued"]  # it may be short
    assert told(seen_for_sure) == ["running", "running", "succeeded", "done"]
    assert [data["attempts"] for name, data in seen_for_sure if name == "status"] == [1, 2, 2]
    whole(seen)
    assert text(seen) == "".join(chunks) == "one two three " * 8
