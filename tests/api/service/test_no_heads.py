"""Decoding with draft heads where no worker has any."""

from __future__ import annotations

import time

import httpx
import pytest

from tasks.base.settings import Settings
from tests.api.requests.test_bad_input import error
from tests.support.workers import Workers

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("model_worker")]


def test_medusa_is_refused(http: httpx.Client) -> None:
    message = "decoding: 'medusa' needs draft heads, and no live worker has any for its model"
    before = http.get("/v1/jobs").json()["data"]
    for response in (
        http.post("/v1/jobs", json={"prompt": "x", "decoding": "medusa"}),
        http.post("/generate/medusa", json={"prompt": "x"}),
        http.post("/compare", json={"prompt": "x"}),
    ):
        found = error(response, 400)
        assert (found["code"], found["param"], found["message"]) == ("no_heads", "decoding", message)
    assert http.get("/v1/jobs").json()["data"] == before


def test_anything_else_is_not(http: httpx.Client) -> None:
    body = {"prompt": "x", "decoding": "auto"}
    job = http.post("/v1/jobs", json=body, headers={"Prefer": "wait=20"}).json()
    assert job["status"] == "succeeded"
    assert http.post("/generate/normal", json={"prompt": "x"}).json()["text"] == "x"


def test_with_no_worker_at_all_it_waits(
    http: httpx.Client, model_worker: Workers, gateway_settings: Settings
) -> None:
    model_worker.close()
    time.sleep(gateway_settings.worker_ttl_s + 1)
    now = {"Prefer": "wait=0"}
    found = error(http.post("/generate/medusa", json={"prompt": "x"}, headers=now), 504)
    assert "is still queued" in found["message"]
    job_id = found["message"].split()[0]
    model_worker.model(gateway_settings)
    job = http.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=20"}).json()
    assert (job["status"], job["error"]["code"]) == ("failed", "no_heads")
