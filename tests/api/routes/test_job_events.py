"""`GET /v1/jobs/{id}/events`: from any moment on, whatever happens to worker and connection."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest
import redis

from api.http.sse import PING_S, EventStream, encoded
from api.service.job_events import POLL_S
from tests.support.servers import RedisServer
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack

Event = tuple[str, dict[str, Any]]


def submit(http: httpx.Client, prompt: str, **fields: Any) -> str:
    return str(http.post("/v1/jobs", json={"prompt": prompt, **fields}).json()["id"])


def events(http: httpx.Client, job_id: str) -> Iterator[Event]:
    with http.stream("GET", f"/v1/jobs/{job_id}/events", timeout=30) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in response.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


def text(seen: list[Event]) -> str:
    return "".join(data["text"] for name, data in seen if name == "text")


def told(seen: list[Event]) -> list[str]:
    """The statuses, and whatever else but text."""
    return [data["status"] if name == "status" else name for name, data in seen if name != "text"]


def whole(seen: list[Event]) -> None:
    """Nothing is missing, nothing came twice, the record is last."""
    assert seen[-1][0] == "done"
    assert text(seen) == seen[-1][1]["result"]["text"]


@pytest.mark.usefixtures("model_worker")
def test_from_the_queue_to_the_end(http: httpx.Client) -> None:
    blockers = [submit(http, "delay=3") for _ in range(6)]  # as many as this worker takes at once
    job_id = submit(http, "ä b stream=5 delay=1", priority="bulk", return_token_ids=True)
    seen = list(events(http, job_id))
    assert told(seen) == ["queued", "running", "succeeded", "done"]
    assert all(data.keys() == {"text"} for name, data in seen if name == "text")
    assert seen[-1][1]["result"]["token_ids"] == [*range(10)]
    assert seen[1] == ("status", {"id": job_id, "status": "running", "attempts": 1})
    assert text(seen) == "ä b " * 5
    assert sum(name == "text" for name, _ in seen) > 3
    whole(seen)
    assert seen[-1][1] == http.get(f"/v1/jobs/{job_id}").json()
    for blocker in blockers:
        http.get(f"/v1/jobs/{blocker}", headers={"Prefer": "wait=20"})


@pytest.mark.usefixtures("model_worker")
def test_a_job_that_runs_already(http: httpx.Client) -> None:
    job_id = submit(http, "word stream=20 delay=5", logprobs=0)
    wait_until(lambda: http.get(f"/v1/jobs/{job_id}").json()["status"] == "running")
    time.sleep(2)
    seen = list(events(http, job_id))
    assert told(seen) == ["running", "succeeded", "done"]
    first = next(data for name, data in seen if name == "text")
    assert first["text"].count("word") > 5, "what there was"
    assert sum(name == "text" for name, _ in seen) > 4
    whole(seen)
    logprobs = [token for name, data in seen if name == "text" for token in data["logprobs"]]
    assert logprobs == seen[-1][1]["result"]["logprobs"]


@pytest.mark.usefixtures("model_worker")
def test_a_second_listener_has_it_all_at_once(http: httpx.Client) -> None:
    job_id = submit(http, "word stream=20 delay=5")
    first = events(http, job_id)
    while next(first)[0] != "text":
        pass
    time.sleep(1.5)
    second = events(http, job_id)
    assert told([next(second)]) == ["running"]
    name, data = next(second)
    assert (name, data["text"].count("word") > 3) == ("text", True), "the text that Redis keeps"
    whole([("text", data), *second])
    assert list(first)[-1][0] == "done"


@pytest.mark.usefixtures("model_worker")
def test_an_ended_job_is_done_at_once(http: httpx.Client) -> None:
    job_id = submit(http, "all of it")
    wait_until(lambda: http.get(f"/v1/jobs/{job_id}").json()["status"] == "succeeded")

    def seconds() -> float:
        began = time.monotonic()
        seen = list(events(http, job_id))
        assert (told(seen), text(seen)) == (["succeeded", "done"], "all of it")
        return time.monotonic() - began

    assert min(seconds() for _ in range(3)) < POLL_S


@pytest.mark.usefixtures("model_worker")
def test_jobs_that_end_otherwise(http: httpx.Client) -> None:
    failed = list(events(http, submit(http, "fail=decode_failed delay=0.3")))
    assert told(failed)[-2:] == ["failed", "done"]
    assert failed[-1][1]["error"]["code"] == "decode_failed"
    job_id = submit(http, "x stream=100 delay=30")
    stream = events(http, job_id)
    seen = [next(stream) for _ in range(3)]
    http.post(f"/v1/jobs/{job_id}/cancel")
    seen += stream
    assert told(seen)[-2:] == ["cancelled", "done"]
    whole(seen)


@pytest.mark.usefixtures("model_worker")
def test_who_only_looks_on_cancels_nothing(http: httpx.Client) -> None:
    job_id = submit(http, "x stream=10 delay=1")
    stream = events(http, job_id)
    next(stream)
    stream.close()
    job = http.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=20"}).json()
    assert job["status"] == "succeeded"


@pytest.mark.usefixtures("model_worker")
def test_a_lost_connection_to_redis_loses_no_text(http: httpx.Client, redis_server: RedisServer) -> None:
    job_id = submit(http, "word stream=60 delay=3")
    seen = []
    with redis.Redis.from_url(redis_server.url) as client:
        for number, event in enumerate(events(http, job_id)):
            seen.append(event)
            if number in (5, 15):
                assert client.client_kill_filter(_type="pubsub") >= 1
    whole(seen)
    assert text(seen) == "word " * 60
    assert sum(name == "text" for name, _ in seen) > 10, "it went on afterwards"


def test_comments_keep_a_silent_connection_open_and_its_end_is_noticed() -> None:
    assert EventStream(_silence()).ping_interval == PING_S == 15
    sent: list[bytes] = []
    ended: list[bool] = []

    async def run() -> None:
        gone = anyio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if sum(body.startswith(b": ping") for body in sent) == 2:
                gone.set()

        stream = EventStream(_silence(), lambda: ended.append(True))
        stream.ping_interval = 0.05
        with anyio.fail_after(5):
            await stream({"type": "http", "method": "GET"}, receive, send)

    anyio.run(run)
    assert sent[1] == b'event: status\ndata: {"a":"\xc3\xa9"}\n\n'
    assert ended == [True]


async def _silence() -> Any:
    yield encoded({"a": "é"}, "status")
    await anyio.sleep_forever()


@pytest.mark.usefixtures("model_worker")
def test_unknown_job(http: httpx.Client) -> None:
    response = http.get("/v1/jobs/job_none/events")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "job_not_found")


@pytest.mark.usefixtures("model_worker")
def test_drafted_parts_are_marked(http: httpx.Client) -> None:
    job_id = submit(http, "one two stream=2 delay=3 spans=0:3:medusa,8:11:lookup,12:16:lookup")
    seen = list(events(http, job_id))
    whole(seen)
    marked = [
        (data["text"][span["start"] : span["end"]], span["source"])
        for name, data in seen
        if name == "text"
        for span in data.get("drafts", ())
    ]
    assert marked == [("one", "medusa"), ("one", "lookup"), ("two ", "lookup")]
