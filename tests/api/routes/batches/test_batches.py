"""The batch endpoints through the official client, against a real gateway, io worker and scripted worker."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from fastapi import FastAPI
from fastapi.responses import Response
from openai.types import Batch

from api.requests.open_requests import OpenKey
from api.routes.batch_results import _results
from api.service.dependencies import Gateway
from tasks.base.settings import Settings
from tasks.files.factory import make_store
from tasks.records.batch import ENDED
from tests.api.routes.batches.batch_client import chat, create, end, entries, upload
from tests.tasks.helpers.records import ended_long_ago


def test_a_file_goes_in_and_its_answers_come_out(client: openai.OpenAI) -> None:
    batch = create(client, [*(chat(n, f"number {n}") for n in range(20)), "{"], metadata={"night": "7"})
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", "/v1/chat/completions")
    assert batch.metadata == {"night": "7"}
    done = end(client, batch)
    assert done.status == "completed"
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (
        21,
        20,
        1,
    )
    assert done.completed_at is not None
    assert done.usage is not None
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens > 0
    answers = entries(client, done.output_file_id)
    assert [entry["custom_id"] for entry in answers] == [f"id-{n}" for n in range(20)]
    body = answers[3]["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "number 3"
    assert body["model"] == "scripted"
    [bad] = entries(client, done.error_file_id)
    assert (bad["error"]["code"], bad["error"]["line"]) == ("invalid_json_line", 21)
    assert done.errors is not None
    assert done.errors.data is not None
    assert [(e.code, e.line) for e in done.errors.data] == [("invalid_json_line", 21)]
    assert client.files.retrieve(done.output_file_id or "").purpose == "batch_output"


def test_a_line_for_jobs_gets_the_token_ids_that_it_asks_for(client: openai.OpenAI) -> None:
    lines = [
        {**chat(n), "url": "/v1/jobs", "body": {"prompt": "x tokens=3", "return_token_ids": n > 0}}
        for n in range(2)
    ]
    done = end(client, create(client, lines, endpoint="/v1/jobs"))
    without, asked = (
        entry["response"]["body"]["choices"][0] for entry in entries(client, done.output_file_id)
    )
    assert "token_ids" not in without
    assert asked["token_ids"] == [0, 1, 2]


def test_lists_are_paged(client: openai.OpenAI) -> None:
    ids = [create(client, [chat(1)]).id for _ in range(3)]
    page = client.batches.list(limit=2)
    assert [batch.id for batch in page.data] == ids[:0:-1]
    assert client.batches.list(limit=2, after=ids[1]).data[0].id == ids[0]
    assert ids == [b.id for b in client.batches.list(limit=1) if b.id in ids][::-1], (
        "the client walks all pages"
    )


def test_one_request_waits_for_the_end(client: openai.OpenAI) -> None:
    batch = create(client, [chat(n, "x delay=0.2") for n in range(10)])
    done = client.batches.retrieve(batch.id, extra_headers={"Prefer": "wait=30"})
    assert done.status == "completed"
    assert done.request_counts
    assert done.request_counts.completed == 10


def test_a_wait_is_over_before_a_batch_that_takes_longer(client: openai.OpenAI) -> None:
    batch = create(client, [chat(n, "x delay=5") for n in range(20)])
    waited = client.batches.retrieve(batch.id, extra_headers={"Prefer": "wait=1"})
    assert waited.status not in ENDED
    client.batches.cancel(batch.id)


def test_cancelling_keeps_what_has_ended(client: openai.OpenAI) -> None:
    batch = create(client, [chat(n, "x delay=0.2") for n in range(100)])
    while not (counts := client.batches.retrieve(batch.id).request_counts) or counts.completed < 3:
        time.sleep(0.05)
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = end(client, batch)
    assert done.status == "cancelled"
    assert len(entries(client, done.output_file_id)) + len(entries(client, done.error_file_id)) == 100


def test_results_can_be_read_while_it_runs(client: openai.OpenAI, http: httpx.Client) -> None:
    batch = create(client, [chat(n, "x delay=0.25" if n else "boom fail=boom") for n in range(40)])
    seen: list[str] = []
    while not seen:
        seen = http.get(f"/v1/batches/{batch.id}/output").text.splitlines()
        assert client.batches.retrieve(batch.id).status not in ENDED
    assert 0 < len(seen) < 39
    done = end(client, batch)
    whole = http.get(f"/v1/batches/{batch.id}/output")
    assert whole.content == client.files.content(done.output_file_id or "").content
    [failed] = http.get(f"/v1/batches/{batch.id}/errors").text.splitlines()
    assert json.loads(failed)["error"]["code"] == "boom"


def test_only_what_failed_is_retried(client: openai.OpenAI, http: httpx.Client) -> None:
    batch = end(client, create(client, [chat(0), chat(1, "x fail=boom"), chat(2)]))
    again = http.post(f"/v1/batches/{batch.id}/retry").json()
    assert again["retry_of"] == batch.id
    done = end(client, client.batches.retrieve(again["id"]))
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.failed) == (1, 1)
    assert [e["custom_id"] for e in entries(client, done.error_file_id)] == ["id-1"]
    assert http.get(f"/v1/batches/{batch.id}").json()["top_errors"] == [{"code": "boom", "count": 1}]
    good = end(client, create(client, [chat(0)]))
    refused = http.post(f"/v1/batches/{good.id}/retry")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "nothing_failed")
    running = create(client, [chat(0, "x delay=3")])
    refused = http.post(f"/v1/batches/{running.id}/retry")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "batch_not_ended")
    end(client, running)


def test_a_repeated_retry_gives_what_it_made(client: openai.OpenAI, http: httpx.Client) -> None:
    batch = end(client, create(client, [chat(0, "x fail=boom")]))
    headers = {"Idempotency-Key": f"again-{batch.id}"}
    made = http.post(f"/v1/batches/{batch.id}/retry", headers=headers).json()
    end(client, client.batches.retrieve(made["id"]))
    assert http.delete(f"/v1/batches/{batch.id}").json()["deleted"]
    assert http.post(f"/v1/batches/{batch.id}/retry", headers=headers).json()["id"] == made["id"]
    assert http.post(f"/v1/batches/{batch.id}/retry").status_code == 404


def test_a_retry_of_what_was_cut_off_takes_a_higher_max_tokens(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    form = {"type": "json_object"}

    def retried(batch_id: str, **sent: Any) -> Batch:
        made = http.post(f"/v1/batches/{batch_id}/retry", **sent)
        assert made.status_code == 200, made.text
        return end(client, client.batches.retrieve(made.json()["id"]))

    def failures(batch: Batch) -> list[tuple[str, str]]:
        return [(e["custom_id"], e["error"]["code"]) for e in entries(client, batch.error_file_id)]

    lines = [
        chat(0),
        chat(1, 'needs=20 {"a":1}', response_format=form, max_tokens=9),
        chat(2, 'needs=40 {"a":2}', response_format=form, max_tokens=9),
        chat(3, "x fail=boom", max_tokens=9),
    ]
    first = end(client, create(client, lines))
    assert failures(first) == [("id-1", "incomplete"), ("id-2", "incomplete"), ("id-3", "boom")]
    assert failures(retried(first.id)) == failures(first), "a retry repeats the lines as they are"
    assert failures(retried(first.id, json={})) == failures(first)
    higher = retried(first.id, json={"max_tokens": 20})
    assert failures(higher) == [("id-2", "incomplete"), ("id-3", "boom")]
    [answer] = entries(client, higher.output_file_id)
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == '{"a":1}'
    same = retried(higher.id)
    assert (failures(same), same.to_dict()["max_tokens"]) == (failures(higher), 20), "it has its settings"
    assert failures(retried(same.id, json={"max_tokens": 40})) == [("id-3", "boom")]


def test_what_is_wrong_with_a_retry_is_said(client: openai.OpenAI, http: httpx.Client) -> None:
    batch = end(client, create(client, [chat(0, "x fail=boom")]))
    path = f"/v1/batches/{batch.id}/retry"
    for body, field in (({"max_tokens": "9"}, "max_tokens"), ({"max_token": 9}, "max_token"), ([], None)):
        refused = http.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text
    assert http.post(path, content=b"max_tokens=9").status_code == 415
    headers = {"Idempotency-Key": f"higher-{batch.id}"}
    made = http.post(path, headers=headers, json={"max_tokens": 9}).json()
    assert http.post(path, headers=headers, json={"max_tokens": 9}).json()["id"] == made["id"]
    assert http.post(path, headers=headers).json()["error"]["code"] == "idempotency_conflict"


def test_a_dry_run_sends_nothing(client: openai.OpenAI) -> None:
    done = end(client, create(client, [chat(0), chat(0)], extra_body={"dry_run": True}))
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (2, 0, 1)
    assert done.output_file_id is None


def test_the_same_key_creates_one_batch(client: openai.OpenAI) -> None:
    file_id = upload(client, [chat(0)])
    fields: dict[str, Any] = {"input_file_id": file_id, "completion_window": "24h"}
    headers = {"Idempotency-Key": f"key-{file_id}"}
    first = client.batches.create(endpoint="/v1/chat/completions", extra_headers=headers, **fields)
    again = client.batches.create(endpoint="/v1/chat/completions", extra_headers=headers, **fields)
    assert again.id == first.id
    with pytest.raises(openai.ConflictError) as refused:
        client.batches.create(endpoint="/v1/completions", extra_headers=headers, **fields)
    assert refused.value.code == "idempotency_conflict"


def test_a_repeat_gives_the_batch_even_if_it_could_not_be_made_any_more(client: openai.OpenAI) -> None:
    deadline = time.time() + 2
    fields: dict[str, Any] = {
        "input_file_id": upload(client, [chat(0)]),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "extra_body": {"deadline": deadline},
        "extra_headers": {"Idempotency-Key": "again"},
    }
    first = end(client, client.batches.create(**fields))
    client.files.delete(first.input_file_id)
    time.sleep(max(0, deadline - time.time()))
    assert client.batches.create(**fields).id == first.id
    with pytest.raises(openai.ConflictError):
        client.batches.create(**{**fields, "extra_body": {"dry_run": True}})
    with pytest.raises(openai.BadRequestError, match="deadline"):
        client.batches.create(**{**fields, "extra_headers": {"Idempotency-Key": "another"}})


def test_results_that_are_gone_are_an_error(client: openai.OpenAI, http: httpx.Client) -> None:
    batch = end(client, create(client, [chat(0), chat(1, "x fail=boom")]))
    client.files.delete(batch.output_file_id or "")
    refused = http.get(f"/v1/batches/{batch.id}/output")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "file_not_found")
    errors = http.get(f"/v1/batches/{batch.id}/errors")
    assert errors.headers["content-type"] == "application/jsonl"
    assert len(errors.text.splitlines()) == 1


def test_lost_results_are_an_error(
    client: openai.OpenAI, http: httpx.Client, gateway_settings: Settings
) -> None:
    batch = create(client, [chat(n, "x delay=0.5" if n else "x") for n in range(20)])
    while not http.get(f"/v1/batches/{batch.id}/output").text:
        time.sleep(0.05)
    objects = make_store(gateway_settings.files)
    [lost, *_] = objects.list(f"batches/{batch.id}/parts")
    objects.delete(lost)
    refused = http.get(f"/v1/batches/{batch.id}/output")
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "file_content_missing")
    client.batches.cancel(batch.id)


def test_what_is_left_of_lost_results_can_be_read(
    client: openai.OpenAI, http: httpx.Client, gateway_settings: Settings
) -> None:
    batch = create(client, [chat(n, "x delay=0.5" if n else "x") for n in range(40)])
    objects = make_store(gateway_settings.files)
    folder = f"batches/{batch.id}/parts"
    while len(parts := objects.list(folder)) < 3:
        time.sleep(0.05)
    with objects.open(parts[0]) as part:
        lost = {json.loads(line)[2]["custom_id"] for line in part}
    objects.delete(parts[0])
    client.batches.cancel(batch.id)
    failed = end(client, batch)
    assert failed.status == "failed"
    assert failed.errors is not None
    assert [error.code for error in failed.errors.data or []] == ["object_missing"]
    answers, errors = (
        [json.loads(line)["custom_id"] for line in http.get(f"/v1/batches/{batch.id}/{kind}").iter_lines()]
        for kind in ("output", "errors")
    )
    assert answers
    assert errors
    assert sorted([*answers, *errors, *lost]) == sorted(f"id-{n}" for n in range(40))


@pytest.mark.anyio
async def test_a_batch_that_ends_just_now_gives_its_file(
    client: openai.OpenAI, gateway_settings: Settings
) -> None:
    """By one who has read the record before the end, when the parts were still there."""
    gateway = Gateway(gateway_settings, make_store(gateway_settings.files))
    batch = create(client, [chat(0, "x delay=0.3"), chat(1, "x delay=1")])
    while not (before := gateway.batches.get(batch.id)).segments:
        await asyncio.sleep(0.02)
    end(client, batch)
    ended_long_ago(gateway.batches, batch.id)
    while gateway.files.objects.list(f"batches/{batch.id}"):
        await asyncio.sleep(0.02)

    async def results(failed: bool) -> Response:
        return await _results(before, gateway, OpenKey(), failed=failed)

    app = FastAPI()
    app.add_api_route("/", results, response_class=Response)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as asked:
        assert len((await asked.get("/?failed=false")).text.splitlines()) == 2
        assert (await asked.get("/?failed=true")).text == ""
    gateway.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint", None),
        ({"completion_window": "1h"}, "completion_window", None),
        ({"input_file_id": "file_none"}, "input_file_id", "file_not_found"),
        ({"metadata": {"k": 1}}, "metadata.k", None),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", None),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
            "output_expires_after.seconds",
            None,
        ),
        ({"priority": 101}, "priority", None),
        ({"deadline": 1.0}, "deadline", None),
        ({"deadline": 1e308}, "deadline", None),
        ({"unknown": 1}, "unknown", "unknown_field"),
    ],
)
def test_a_bad_field_is_named(
    client: openai.OpenAI, http: httpx.Client, change: dict[str, Any], param: str, code: str | None
) -> None:
    body = {"input_file_id": upload(client, [chat(0)]), "endpoint": "/v1/chat/completions"}
    refused = http.post("/v1/batches", json={**body, "completion_window": "24h", **change})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert code is None or refused.json()["error"]["code"] == code


def test_an_output_file_is_no_input(client: openai.OpenAI) -> None:
    done = end(client, create(client, [chat(0)]))
    with pytest.raises(openai.BadRequestError, match="the file's purpose is 'batch_output'"):
        client.batches.create(
            input_file_id=done.output_file_id or "", endpoint="/v1/chat/completions", completion_window="24h"
        )


def test_only_what_has_ended_is_deleted(client: openai.OpenAI, http: httpx.Client) -> None:
    batch = create(client, [chat(0, "x delay=1")])
    refused = http.delete(f"/v1/batches/{batch.id}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "batch_not_ended")
    done = end(client, batch)
    deleted = http.delete(f"/v1/batches/{batch.id}")
    assert deleted.json() == {"id": batch.id, "object": "batch", "deleted": True}
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve(batch.id)
    assert len(entries(client, done.output_file_id)) == 1, "its files stay"
    assert http.delete(f"/v1/batches/{batch.id}").status_code == 404


def test_an_unknown_batch_is_404(client: openai.OpenAI, http: httpx.Client) -> None:
    for call in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError) as refused:
            call("batch_none")
        assert refused.value.code == "batch_not_found"
    for path in ("retry", "output", "errors"):
        method = "POST" if path == "retry" else "GET"
        assert http.request(method, f"/v1/batches/batch_none/{path}").status_code == 404
    assert http.get("/v1/batches?after=batch_none").json()["error"]["param"] == "after"
    assert http.get("/v1/batches?limit=0").json()["error"]["param"] == "limit"


def test_the_schema_of_a_line_is_published(http: httpx.Client) -> None:
    schema = http.get("/v1/schemas/batch_line.json").json()
    check = jsonschema.Draft202012Validator(schema)
    check.check_schema(schema)
    completion = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    for good in (chat(0), chat(1, temperature=0.5, max_completion_tokens=5, logprobs=True), completion):
        check.validate(good)
    for bad in (
        {**chat(0), "method": "GET"},
        {**chat(0), "url": "/v1/embeddings"},
        {**chat(0), "custom_id": ""},
        chat(0, temperature=-1),
        {**completion, "body": {}},
        {**chat(0), "more": 1},
    ):
        assert not check.is_valid(bad), bad
