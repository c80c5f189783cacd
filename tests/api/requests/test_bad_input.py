"""Every bad input: its status, its code, and the field it names. Nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import BODY_LIMIT

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("model_worker")]

JSON = {"Content-Type": "application/json"}
USER = {"role": "user", "content": "hi"}


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object, whose shape is always the same."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert body["error"]["message"]
    return dict(body["error"])


@pytest.fixture(autouse=True)
def _nothing_is_stored(http: httpx.Client) -> Iterator[None]:
    yield
    assert http.get("/v1/jobs").json()["data"] == []


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": "a", "messages": [USER]}, "prompt"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages.0.role"),
    ({"messages": [USER, {"role": "user"}]}, "messages.1.content"),
    ({"messages": [USER], "raw": True}, "raw"),
    ({"prompt": "a", "model": ""}, "model"),
    ({"prompt": "a", "model": "x" * 1025}, "model"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "max_tokens": -5}, "max_tokens"),
    ({"prompt": "a", "max_tokens": "5"}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
    ({"prompt": "a", "max_tokens": True}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 2049}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 10**12}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 10**40}, "max_tokens"),
    ({"prompt": "a", "temperature": -0.1}, "temperature"),
    ({"prompt": "a", "temperature": "hot"}, "temperature"),
    ({"prompt": "a", "top_p": 0}, "top_p"),
    ({"prompt": "a", "top_p": 1.1}, "top_p"),
    ({"prompt": "a", "top_k": -1}, "top_k"),
    ({"prompt": "a", "min_p": 2}, "min_p"),
    ({"prompt": "a", "seed": -1}, "seed"),
    ({"prompt": "a", "seed": 2**63}, "seed"),
    ({"prompt": "a", "stop": ["a"] * 17}, "stop"),
    ({"prompt": "a", "stop": ""}, "stop.0"),
    ({"prompt": "a", "stop": 5}, "stop"),
    ({"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids.0"),
    ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    ({"prompt": "a", "presence_penalty": 3}, "presence_penalty"),
    ({"prompt": "a", "frequency_penalty": -3}, "frequency_penalty"),
    ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"prompt": "a", "logit_bias": {"word": 1}}, "logit_bias.word.[key]"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logprobs": -1}, "logprobs"),
    ({"prompt": "a", "return_token_ids": 1}, "return_token_ids"),
    ({"prompt": "a", "decoding": "fast"}, "decoding"),
    ({"prompt": "a", "decoding": True}, "decoding"),
    ({"prompt": "a", "acceptance": "any"}, "acceptance"),
    ({"prompt": "a", "priority": "urgent"}, "priority"),
    ({"prompt": "a", "deadline": -1}, "deadline"),
    ({"prompt": "a", "deadline": 1000.0}, "deadline"),
    ({"prompt": "a", "deadline": 1e308}, "deadline"),
    ({"prompt": "a", "deadline": 1.8e12}, "deadline"),  # milliseconds: it would never come
    ({"prompt": "a", "metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"prompt": "a", "metadata": {"k": 5}}, "metadata.k"),
    ({"prompt": "a", "metadata": {"k": "x" * 513}}, "metadata.k"),
    ({"prompt": "a", "metadata": {"k" * 65: "x"}}, "metadata." + "k" * 65 + ".[key]"),
]


@pytest.mark.parametrize(("body", "param"), BAD_FIELDS, ids=lambda value: json.dumps(value)[:50])
def test_bad_field(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    found = error(http.post("/v1/jobs", json=body), 400)
    assert (found["code"], found["param"]) == ("invalid_value", param)


def test_unknown_field(http: httpx.Client) -> None:
    found = error(http.post("/v1/jobs", json={"prompt": "a", "max_token": 5}), 400)
    assert (found["code"], found["param"]) == ("unknown_field", "max_token")
    message = {"role": "user", "content": "a", "nmae": "x"}
    found = error(http.post("/v1/jobs", json={"messages": [message]}), 400)
    assert (found["code"], found["param"]) == ("unknown_field", "messages.0.nmae")


def test_unknown_model(http: httpx.Client) -> None:
    found = error(http.post("/v1/jobs", json={"prompt": "a", "model": "gpt-9"}), 404)
    assert (found["code"], found["param"]) == ("model_not_found", "model")
    assert "scripted" in found["message"]


@pytest.mark.parametrize(
    "text", ["", "{", '{"prompt": "a",}', "[1, 2", '{"prompt": "\\ud800"}', "nul" + "\0"]
)
def test_malformed_json(http: httpx.Client, text: str) -> None:
    found = error(http.post("/v1/jobs", content=text, headers=JSON), 400)
    assert (found["code"], found["param"]) == ("malformed_json", None)


def test_json_that_is_no_object(http: httpx.Client) -> None:
    for text in ("[]", "5", '"prompt"', "null"):
        assert error(http.post("/v1/jobs", content=text, headers=JSON), 400)["code"] == "invalid_value"


def test_not_a_finite_number(http: httpx.Client) -> None:
    for number in ("1e999", "NaN", "-Infinity"):
        text = f'{{"prompt": "a", "temperature": {number}}}'
        assert error(http.post("/v1/jobs", content=text, headers=JSON), 400)["param"] == "temperature"


def test_deep_nesting(http: httpx.Client) -> None:
    text = '{"prompt": ' + "[" * 2000
    assert error(http.post("/v1/jobs", content=text, headers=JSON), 400)["code"] == "malformed_json"


def test_invalid_utf8(http: httpx.Client) -> None:
    for raw in (b'{"prompt": "\xff"}', b'{"prompt": "\xe2\x82"}', b'{"prompt": "\xed\xa0\x80"}'):
        assert error(http.post("/v1/jobs", content=raw, headers=JSON), 400)["code"] == "invalid_utf8"


def test_body_over_the_limit_by_its_declared_length(http: httpx.Client) -> None:
    found = error(http.post("/v1/jobs", json={"prompt": "x" * BODY_LIMIT}), 413)
    assert found["code"] == "body_too_large"
    assert str(BODY_LIMIT) in found["message"]


def test_body_over_the_limit_in_chunks(http: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(10):
            yield b" " * 1000

    assert error(http.post("/v1/jobs", content=chunks(), headers=JSON), 413)["code"] == "body_too_large"


def test_content_type_must_be_json(http: httpx.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = http.post("/v1/jobs", content='{"prompt": "a"}', headers={"Content-Type": kind})
        assert error(response, 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("value", ["wait=-1", "wait=61", "wait=soon", "wait=1e3", "respond-async, wait="])
def test_bad_prefer(http: httpx.Client, value: str) -> None:
    response = http.post("/v1/jobs", json={"prompt": "a"}, headers={"Prefer": value})
    assert error(response, 400)["param"] == "Prefer"


def test_bad_idempotency_key(http: httpx.Client) -> None:
    for key in ("", "k" * 256):
        response = http.post("/v1/jobs", json={"prompt": "a"}, headers={"Idempotency-Key": key})
        assert error(response, 400)["param"] == "Idempotency-Key"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("status=done", "status"),
        ("after=job_none", "after"),
        ("stauts=queued", "stauts"),
        ("metadata=x", "metadata"),
    ],
)
def test_bad_query(http: httpx.Client, query: str, param: str) -> None:
    assert error(http.get(f"/v1/jobs?{query}"), 400)["param"] == param


def test_unknown_job(http: httpx.Client) -> None:
    for response in (
        http.get("/v1/jobs/job_none"),
        http.get("/v1/jobs/%ff%00"),
        http.post("/v1/jobs/job_none/cancel"),
        http.delete("/v1/jobs/job_none"),
    ):
        assert error(response, 404)["code"] == "job_not_found"


def test_unknown_route_and_method(http: httpx.Client) -> None:
    assert error(http.get("/v2/none"), 404)["code"] == "not_found"
    assert error(http.put("/v1/jobs"), 405)["code"] == "method_not_allowed"


def test_a_far_deadline_is_fine(http: httpx.Client) -> None:
    """This one is cancelled and removed again."""
    job = http.post("/v1/jobs", json={"prompt": "delay=9", "deadline": 2.5e11}).json()
    http.post(f"/v1/jobs/{job['id']}/cancel", headers={"Prefer": "wait=20"})
    http.get(f"/v1/jobs/{job['id']}", headers={"Prefer": "wait=20"})
    assert http.delete(f"/v1/jobs/{job['id']}").json()["deleted"] is True


def test_a_listing_is_filtered_by_no_more_metadata_than_a_job_has(http: httpx.Client) -> None:
    many = {f"metadata[{n}]": "x" for n in range(17)}
    found = error(http.get("/v1/jobs", params=many), 400)
    assert (found["code"], found["param"]) == ("invalid_value", "metadata")
    many.popitem()
    assert http.get("/v1/jobs", params=many).status_code == 200
