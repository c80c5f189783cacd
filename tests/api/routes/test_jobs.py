"""The job endpoints with a real gateway, server and worker."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import httpx
import pytest

from api.service.job_events import POLL_S
from tasks.base.settings import Settings
from tests.support.workers import Workers, wait_until

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("model_worker")]

FIELDS = (
    "id object status priority model created_at started_at finished_at deadline attempts worker metadata "
    "request result error"
)


def submit(http: httpx.Client, prompt: str, wait: int | None = None, **fields: Any) -> httpx.Response:
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    return http.post("/v1/jobs", json={"prompt": prompt, **fields}, headers=headers)


def test_submit_and_get(http: httpx.Client) -> None:
    response = submit(http, "hello", metadata={"a": "b"}, max_tokens=5)
    job = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    assert list(job) == FIELDS.split()
    assert (job["object"], job["status"], job["metadata"]) == ("job", "queued", {"a": "b"})
    assert isinstance(job["request"]["seed"], int)
    response = http.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=20"})
    ended = response.json()
    assert response.status_code == 200
    assert ended["status"] == "succeeded"
    assert ended["request"] == job["request"]
    assert ended["request"] | {"seed": 0} == {
        "prompt": "hello",
        "max_tokens": 5,
        "metadata": {"a": "b"},
        "seed": 0,
    }
    assert ended["result"]["text"] == "hello"
    assert ended["created_at"] <= ended["started_at"] <= ended["finished_at"] <= time.time() + 1


def test_every_field_is_accepted_and_kept(http: httpx.Client) -> None:
    body = {
        "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "hi"}],
        "model": "scripted",
        "max_tokens": 2048,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 2**63 - 1,
        "stop": ["a", "b"],
        "stop_token_ids": [0, 5],
        "repetition_penalty": 1.1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "logit_bias": {"5": -100},
        "logprobs": 2,
        "return_token_ids": True,
        "ignore_eos": True,
        "decoding": "normal",
        "acceptance": "typical",
        "priority": "bulk",
        "deadline": time.time() + 60,
        "metadata": {"k": ""},
    }
    response = http.post("/v1/jobs", json=body, headers={"Prefer": "wait=20"})
    assert response.status_code == 200, response.text
    job = response.json()
    assert job["request"] == body
    assert (job["status"], job["priority"], job["model"]) == ("succeeded", "bulk", "scripted")
    token = {"token_id": 0, "token": "x", "logprob": -0.5}
    assert job["result"]["logprobs"] == [{**token, "top": [token]}]
    assert job["result"]["token_ids"] == [0]
    assert "token_ids" not in submit(http, "hi", wait=20).json()["result"], "nobody asked"


def test_stop_may_be_one_string_and_null_is_as_good_as_absent(http: httpx.Client) -> None:
    job = submit(http, "hi", wait=20, stop="end", seed=None, max_tokens=None).json()
    assert job["status"] == "succeeded"
    assert job["request"]["stop"] == ["end"]
    assert job["request"]["max_tokens"] == 256
    assert isinstance(job["request"]["seed"], int)


def test_prefer_wait_answers_at_once_when_it_ends(http: httpx.Client) -> None:
    def seconds() -> float:
        started = time.monotonic()
        response = submit(http, "delay=0.5", wait=20)
        assert response.status_code == 200
        assert response.headers["preference-applied"] == "wait=20"
        assert response.json()["status"] == "succeeded"
        return time.monotonic() - started

    assert 0.5 <= min(seconds() for _ in range(3)) < POLL_S


def test_prefer_wait_answers_in_time_when_it_does_not_end(http: httpx.Client) -> None:
    started = time.monotonic()
    response = submit(http, "delay=30", wait=3)
    assert response.status_code == 202
    assert response.json()["status"] == "running"
    assert 3 <= time.monotonic() - started < 20
    http.post(f"/v1/jobs/{response.json()['id']}/cancel")


def test_many_waiters_share_the_gateway(http: httpx.Client) -> None:
    """More waiting requests than the thread pool has threads, all answered when their jobs end."""
    answers: list[httpx.Response] = []

    def one() -> None:
        answers.append(submit(http, "delay=0.1", wait=20))

    threads = [threading.Thread(target=one) for _ in range(60)]
    for thread in threads:
        thread.start()
    assert http.get("/healthz").status_code == 200
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 60


def test_failed_job_shows_its_error(http: httpx.Client) -> None:
    job = submit(http, "fail=decode_failed", wait=20).json()
    assert job["status"] == "failed"
    assert job["error"] == {"code": "decode_failed", "message": "as the script says", "param": None}
    assert job["result"] is None


def test_cancel_and_delete(http: httpx.Client) -> None:
    job_id = submit(http, "some text delay=60 tokens=900").json()["id"]
    wait_until(lambda: http.get(f"/v1/jobs/{job_id}").json()["status"] == "running")
    time.sleep(2)
    response = http.delete(f"/v1/jobs/{job_id}")
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "job_not_finished"
    assert http.post(f"/v1/jobs/{job_id}/cancel").json()["id"] == job_id
    job = http.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=20"}).json()
    assert job["status"] == "cancelled"
    assert job["result"]["finish_reason"] == "cancelled"
    assert 0 < job["result"]["usage"]["completion_tokens"] < 900
    assert http.post(f"/v1/jobs/{job_id}/cancel").json() == job
    deleted = http.delete(f"/v1/jobs/{job_id}")
    assert deleted.json() == {"id": job_id, "object": "job", "deleted": True}
    assert http.get(f"/v1/jobs/{job_id}").status_code == 404


def test_deadline_expires_a_job_with_its_partial_text(http: httpx.Client) -> None:
    job = submit(http, "some text delay=30", wait=20, deadline=time.time() + 3).json()
    assert job["status"] == "expired"
    assert job["result"]["text"] == "some text"


def test_idempotency_key(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    first = http.post("/v1/jobs", json={"prompt": "hi", "top_k": 1}, headers=headers).json()
    same = http.post("/v1/jobs", json={"top_k": 1, "prompt": "hi"}, headers=headers | {"Prefer": "wait=20"})
    assert (same.status_code, same.json()["id"]) == (200, first["id"])
    assert same.json()["request"]["seed"] == first["request"]["seed"]
    other = http.post("/v1/jobs", json={"prompt": "other"}, headers=headers)
    assert other.status_code == 409
    assert other.json()["error"]["code"] == "idempotency_conflict"
    assert other.headers["x-should-retry"] == "false"


def test_a_repeat_gives_the_job_after_its_deadline_too(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"prompt": "hi", "deadline": time.time() + 2}
    first = http.post("/v1/jobs", json=body, headers=headers).json()
    time.sleep(2.1)
    assert http.post("/v1/jobs", json=body, headers=headers).json()["id"] == first["id"]
    refused = http.post("/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "deadline")


def test_list_pages_and_filters(http: httpx.Client) -> None:
    run = uuid.uuid4().hex
    ids = [submit(http, "hi", metadata={"run": run}, wait=20).json()["id"] for _ in range(5)][::-1]
    query: dict[str, str | int] = {"metadata[run]": run, "status": "succeeded", "limit": 2}
    page = http.get("/v1/jobs", params=query).json()
    assert (page["object"], page["has_more"]) == ("list", True)
    assert (page["first_id"], page["last_id"]) == (ids[0], ids[1])
    seen = [job["id"] for job in page["data"]]
    while page["has_more"]:
        page = http.get("/v1/jobs", params={**query, "after": page["last_id"]}).json()
        seen += [job["id"] for job in page["data"]]
    assert seen == ids
    empty = http.get("/v1/jobs", params={"metadata[run]": "none"}).json()
    assert empty == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}


def test_a_list_goes_on_though_the_last_job_of_a_page_is_gone(http: httpx.Client) -> None:
    run = uuid.uuid4().hex
    ids = [submit(http, "hi", metadata={"run": run}, wait=20).json()["id"] for _ in range(5)][::-1]
    query: dict[str, str | int] = {"metadata[run]": run, "limit": 3}
    last = http.get("/v1/jobs", params=query).json()["last_id"]
    assert http.delete(f"/v1/jobs/{last}").status_code == 200
    refused = http.get("/v1/jobs", params={**query, "after": last})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")
    how = "if it was dropped since, begin after an object before it in the list"
    assert refused.json()["error"]["message"] == f"after: no job with id '{last}'; {how}"
    rest = http.get("/v1/jobs", params={**query, "after": ids[1]}).json()
    assert [job["id"] for job in rest["data"]] == ids[3:]


def test_models_and_health(http: httpx.Client) -> None:
    models = http.get("/v1/models").json()
    assert models["object"] == "list"
    [model] = models["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("scripted", "model", "medusaq")
    assert (model["context_length"], model["slots"], model["workers"]) == (2048, 4, 1)
    [worker] = model["workers_detail"]
    assert worker["quantization"] == "F32"
    assert worker["metrics"]["running"] >= 0
    assert http.get("/v1/models/scripted").json()["id"] == "scripted"
    unknown = http.get("/v1/models/some/other")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_ready_without_an_io_worker_says_so(
    http: httpx.Client, gateway_settings: Settings, workers: Workers
) -> None:
    ready = http.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"redis": True, "workers": 1, "io_worker": False})
    workers.io(gateway_settings)
    wait_until(lambda: http.get("/readyz").json()["io_worker"])


def test_openapi_describes_the_request(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    post = document["paths"]["/v1/jobs"]["post"]
    reference = post["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert "logit_bias" in schemas[reference.rpartition("/")[2]]["properties"]
    assert {"200", "202", "400", "404", "409", "413", "503"} <= set(post["responses"])
    assert references(document) <= {f"#/components/schemas/{name}" for name in schemas}
    assert http.get("/docs").status_code == 200


def references(node: object) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    return set().union(*(references(value) for value in node)) if isinstance(node, list) else set()
