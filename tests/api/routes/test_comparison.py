"""Speculation as the gateway shows it: in job records, and by /generate and /compare."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from tests.api.requests.test_bad_input import error
from tests.support.workers import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("worker_with_heads")]

ROUTES = ("/generate/normal", "/generate/medusa", "/compare")
GENERATED = "text generation_time tokens_generated tokens_per_second speedup_factor acceptance_rate"


def submit(http: httpx.Client, prompt: str, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/jobs", json={"prompt": prompt, **fields}, headers={"Prefer": "wait=20"})
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_every_result_tells_its_steps_and_drafts(http: httpx.Client) -> None:
    script = "hi tokens=12 steps=4 drafted=medusa:10:6,lookup:4:1,other:0:0"
    drafted = submit(http, script, decoding="medusa", acceptance="typical")
    assert drafted["request"]["decoding"] == "medusa"
    assert drafted["request"]["acceptance"] == "typical"
    assert drafted["result"]["speculation"] == {
        "steps": 4,
        "tokens_per_step": 3.0,
        "sources": {
            "medusa": {"verified": 10, "accepted": 6, "acceptance": 0.6},
            "lookup": {"verified": 4, "accepted": 1, "acceptance": 0.25},
            "other": {"verified": 0, "accepted": 0, "acceptance": None},
        },
    }
    plain = submit(http, script, decoding="normal")
    assert plain["result"]["speculation"] == {"steps": 12, "tokens_per_step": 1.0, "sources": {}}


def test_models_say_what_they_draft_with(http: httpx.Client) -> None:
    [model] = http.get("/v1/models").json()["data"]
    assert model["workers_detail"][0]["draft_sources"] == ["medusa", "lookup"]


def test_generate(http: httpx.Client) -> None:
    prompt = "it is tokens=12 steps=4 drafted=medusa:10:6 delay=0.2 faster=2"
    normal = http.post("/generate/normal", json={"prompt": prompt, "max_length": 20})
    assert normal.status_code == 200, normal.text
    answer = normal.json()
    assert list(answer) == GENERATED.split()
    assert (answer["text"], answer["tokens_generated"]) == ("it is", 12)
    assert (answer["speedup_factor"], answer["acceptance_rate"]) == (1.0, None)
    assert 0.2 <= answer["generation_time"] < 10
    assert answer["tokens_per_second"] == pytest.approx(12 / answer["generation_time"])
    medusa = http.post("/generate/medusa", json={"prompt": prompt}).json()
    assert (medusa["text"], medusa["speedup_factor"], medusa["acceptance_rate"]) == ("it is", None, 0.6)
    assert medusa["generation_time"] >= 0.1
    requests = [job["request"] for job in http.get("/v1/jobs", params={"limit": 2}).json()["data"]]
    both = {"prompt": prompt, "seed": 0}
    assert requests == [
        {**both, "decoding": "medusa", "max_tokens": 256},
        {**both, "decoding": "normal", "max_tokens": 20},
    ]


def test_compare(http: httpx.Client) -> None:
    prompt = "it is tokens=12 steps=4 drafted=medusa:10:6,lookup:10:0 delay=1.5 faster=10"
    response = http.post("/compare", json={"prompt": prompt, "max_length": 20})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert list(answer) == ["normal", "medusa", "speedup"]
    normal, medusa = answer["normal"], answer["medusa"]
    assert list(normal) == list(medusa) == GENERATED.split()
    assert normal["text"] == medusa["text"] == "it is"
    assert answer["speedup"] == medusa["speedup_factor"]
    assert answer["speedup"] == medusa["tokens_per_second"] / normal["tokens_per_second"]
    assert answer["speedup"] == pytest.approx(normal["generation_time"] / medusa["generation_time"])
    assert 0.15 <= medusa["generation_time"] < 1.5 <= normal["generation_time"]
    assert (normal["speedup_factor"], normal["acceptance_rate"]) == (1.0, None)
    assert medusa["acceptance_rate"] == 0.3
    second, first, before = http.get("/v1/jobs", params={"limit": 3}).json()["data"]
    assert first["finished_at"] <= second["started_at"], "they must not share a batch"
    assert before["finished_at"] <= first["started_at"]
    assert before["request"]["max_tokens"] == 1, "the prompt is computed before both, for both"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "invalid_value", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": ["x"]}, "invalid_value", "prompt"),
        ({"prompt": "x", "max_length": 0}, "invalid_value", "max_length"),
        ({"prompt": "x", "max_length": "9"}, "invalid_value", "max_length"),
        ({"prompt": "x", "max_length": 2**31}, "invalid_value", "max_length"),
        ({"prompt": "x", "max_length": 2049}, "invalid_value", "max_length"),
        ({"prompt": "x", "max_tokens": 9}, "unknown_field", "max_tokens"),
    ],
)
def test_bad_bodies(http: httpx.Client, route: str, body: dict[str, Any], code: str, param: str) -> None:
    found = error(http.post(route, json=body), 400)
    assert (found["code"], found["param"]) == (code, param)
    assert "max_tokens:" not in found["message"] or param == "max_tokens"


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_no_request(http: httpx.Client, route: str) -> None:
    assert error(http.post(route, content="x"), 415)["code"] == "unsupported_media_type"
    json = {"Content-Type": "application/json"}
    assert error(http.post(route, content="{", headers=json), 400)["code"] == "malformed_json"
    prefer = {"Prefer": "wait=61"}
    assert error(http.post(route, json={"prompt": "x"}, headers=prefer), 400)["param"] == "Prefer"
    assert error(http.get(route), 405)["code"] == "method_not_allowed"


@pytest.mark.parametrize("route", ROUTES)
def test_what_does_not_end_in_time_goes_on_under_its_id(http: httpx.Client, route: str) -> None:
    started = time.monotonic()
    response = http.post(route, json={"prompt": "slow delay=6"}, headers={"Prefer": "wait=2"})
    assert time.monotonic() - started >= 2
    found = error(response, 504)
    assert found["code"] == "not_in_time"
    job_id = http.get("/v1/jobs", params={"limit": 1}).json()["data"][0]["id"]
    assert (
        found["message"]
        == f"{job_id} is still running and continues: get its result from GET /v1/jobs/{job_id}"
    )
    job = http.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=20"}).json()
    assert (job["status"], job["result"]["text"]) == ("succeeded", "slow")


def test_a_job_that_fails(http: httpx.Client) -> None:
    found = error(http.post("/generate/normal", json={"prompt": "fail=decode_failed"}), 500)
    assert found["code"] == "decode_failed"
    assert found["message"].endswith(" failed: as the script says")
    refused = error(http.post("/compare", json={"prompt": "fail=too_long param=max_tokens"}), 400)
    assert (refused["code"], refused["param"]) == ("too_long", "max_length")


def test_a_job_that_is_cancelled_meanwhile(http: httpx.Client) -> None:
    answers: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(http.post("/generate/medusa", json={"prompt": "cancel me delay=9"}))
    )
    asking.start()

    def job() -> dict[str, Any] | None:
        running = http.get("/v1/jobs", params={"status": "running"}).json()["data"]
        return next((job for job in running if job["request"]["prompt"].startswith("cancel me")), None)

    wait_until(lambda: job() is not None)
    found = job()
    assert found is not None
    http.post(f"/v1/jobs/{found['id']}/cancel")
    asking.join()
    refusal = error(answers[0], 409)
    assert refusal["code"] == "job_cancelled"
    assert refusal["message"] == f"{found['id']} was cancelled before it finished"


def test_openapi_describes_them(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert set(document["components"]["schemas"]["GenerateRequest"]["properties"]) == {
        "prompt",
        "model",
        "max_length",
    }
    for route in ROUTES:
        post = document["paths"][route]["post"]
        assert {"200", "400", "504"} <= set(post["responses"])
    assert "texts are equal" in document["paths"]["/compare"]["post"]["description"]
    fields = document["components"]["schemas"]["JobRequest"]["properties"]
    assert "lossy" in fields["acceptance"]["description"]
