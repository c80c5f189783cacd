"""Which lines of a batch are with the workers, and what is said of a single one."""

from __future__ import annotations

import re
from typing import Any

import httpx
import openai
import pytest

from tests.api.routes.batches.batch_client import chat, create, end
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack
LINES = 60


def test_the_windows_of_a_batch_say_which_lines_they_hold(client: openai.OpenAI, http: httpx.Client) -> None:
    batch = create(client, [chat(n, f"n{n} delay={0.2 + n % 5 / 4}") for n in range(LINES)])
    shown: list[dict[str, Any]] = []

    def several_lines_run() -> bool:
        shown[:] = http.get(f"/v1/batches/{batch.id}/windows").json()["data"]
        running = (window for window in shown if window["status"] == "running")
        return any(
            window["line_counts"]["total"] > 1 and window["line_counts"]["ended"] for window in running
        )

    wait_until(several_lines_run, report=lambda: str(shown))
    for window in shown:
        first, last = re.fullmatch(rf"{batch.id} lines? (\d+)(?: to (\d+))?", window["lines"]).groups()  # type: ignore[union-attr]
        assert window["line_counts"]["total"] == int(last or first) - int(first) + 1
        assert window["id"] == f"win_{batch.id.removeprefix('batch_')}-{first}"
        assert (window["worker"] is not None) == (window["status"] == "running")
    samples = http.get("/metrics").text
    assert 'medusaq_batch_windows{model="scripted",status="running"}' in samples

    asked = http.get(f"/v1/jobs/job_{batch.id.removeprefix('batch_')}-{LINES}")
    assert (asked.status_code, asked.json()["error"]["code"]) == (404, "line_of_batch")
    assert f"/v1/batches/{batch.id}/" in asked.json()["error"]["message"], "where to look"

    assert end(client, batch).status == "completed"
    nothing = http.get(f"/v1/batches/{batch.id}/windows").json()
    assert (nothing["data"], nothing["has_more"]) == ([], False)
    ended = re.search(
        r'medusaq_batch_lines_ended_total\{outcome="succeeded"\} (\S+)', http.get("/metrics").text
    )
    assert ended is not None
    assert float(ended[1]) >= LINES
    assert http.get(f"/v1/batches/batch_{'0' * 32}/windows").status_code == 404


def test_a_batch_says_what_runs_before_a_line_has_ended(client: openai.OpenAI, http: httpx.Client) -> None:
    batch = create(client, [chat(n, f"n{n} delay=60 tokens=6000") for n in range(3)])
    shown: dict[str, Any] = {}

    def tokens_come() -> bool:
        shown.update(http.get(f"/v1/batches/{batch.id}").json())
        return bool(shown["running"]["output_tokens"] and shown["running"]["lines"] == 3)

    wait_until(tokens_come, report=lambda: str(shown))
    assert shown["request_counts"]["completed"] == shown["usage"]["output_tokens"] == 0
    listed = http.get("/v1/batches", params={"limit": 1}).json()["data"][0]
    assert (listed["id"], listed["running"]["lines"]) == (batch.id, 3)
    client.batches.cancel(batch.id)
    end(client, batch)
    assert http.get(f"/v1/batches/{batch.id}").json()["running"] == {"lines": 0, "output_tokens": 0}
