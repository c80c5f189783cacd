"""Webhooks of jobs and batches through a real gateway, workers and receivers; each key sees its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from tasks.base.settings import Settings
from tasks.records.api_key import Limits
from tasks.records.webhook import new_secret
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.support.peers.receivers import Receiver, receiving, status
from tests.support.servers import RedisServer, fast_settings
from tests.support.tuned import constants
from tests.support.workers import Workers, wait_until

pytestmark = pytest.mark.stack

URL = "https://example.com/hook"


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return fast_settings(
        redis_server,
        files=str(tmp_path_factory.mktemp("files")),
        webhook_allow=["127.0.0.1/32"],
    )


@pytest.fixture(scope="module")
def new_key(gateway_settings: Settings) -> Callable[[], str]:
    """Makes a key and gives its secret."""

    def make() -> str:
        store = JobStore(gateway_settings)
        _, secret = KeyStore(store.db).create("test", Limits())
        store.close()
        return secret

    return make


@pytest.fixture(scope="module")
def key(new_key: Callable[[], str]) -> str:
    """The secret of the key that most tests share."""
    return new_key()


@pytest.fixture(scope="module")
def http(
    model_worker: Workers, gateway_settings: Settings, gateway: GatewayProcess, key: str
) -> Iterator[httpx.Client]:
    """With the key."""
    soon = {"retries_s": [0.05], "timeout_s": 2.0}
    model_worker.io(gateway_settings, constants({"tasks.webhooks.store.SCHEDULE": soon}))
    with holding(key, gateway) as client:
        yield client


@pytest.fixture
def theirs(
    http: httpx.Client,  # noqa: ARG001  # it starts the workers
    gateway: GatewayProcess,
    new_key: Callable[[], str],
) -> Iterator[httpx.Client]:
    """With a key of the test's own."""
    with holding(new_key(), gateway) as client:
        yield client


def holding(key: str, gateway: GatewayProcess) -> httpx.Client:
    return httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {key}"}, timeout=20)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def submit(http: httpx.Client, webhook: object, **fields: Any) -> httpx.Response:
    return http.post("/v1/jobs", json={"prompt": "hello", "webhook": webhook, **fields})


def deliveries(http: httpx.Client, **params: Any) -> list[dict[str, Any]]:
    response = http.get("/v1/webhooks/deliveries", params=params)
    assert response.status_code == 200, response.text
    data: list[dict[str, Any]] = response.json()["data"]
    return data


def delivered(http: httpx.Client, **params: Any) -> dict[str, Any]:
    """The one delivery that fits, once it is pending no more."""
    wait_until(lambda: [d["status"] for d in deliveries(http, **params)] not in ([], ["pending"]))
    [found] = deliveries(http, **params)
    return found


def secret(http: httpx.Client) -> str:
    response = http.get("/v1/webhooks/secret")
    assert response.headers["cache-control"] == "no-store"
    return str(response.json()["current"])


def test_the_end_of_a_job_is_told(http: httpx.Client, receiver: Receiver) -> None:
    response = submit(http, {"url": receiver.url}, metadata={"order": "7"})
    assert response.status_code == 202, response.text
    job = response.json()
    assert job["request"]["webhook"] == {"url": receiver.url}
    [got] = receiver.wait_for(1)
    event = Verifier(secret(http)).verify(got.body, got.headers)
    assert event["type"] == "job.succeeded"
    assert (event["data"]["id"], event["data"]["metadata"]) == (job["id"], {"order": "7"})
    assert event["data"]["result"] == http.get(f"/v1/jobs/{job['id']}").json()["result"]
    found = delivered(http, job_id=job["id"])
    assert (found["status"], found["object_id"], found["url"]) == ("delivered", job["id"], receiver.url)
    assert found == http.get(f"/v1/webhooks/deliveries/{found['id']}").json()
    assert (found["id"], found["event"]) == (got.headers["webhook-id"], event)
    assert [a["status_code"] for a in found["attempts"]] == [200]


def test_only_what_was_asked_for_is_told(http: httpx.Client, receiver: Receiver) -> None:
    hook = {"url": receiver.url, "events": ["job.failed", "job.cancelled"]}
    good = submit(http, hook, prompt="x").json()
    bad = submit(http, hook, prompt="x fail=boom").json()
    [got] = receiver.wait_for(1)
    event = json.loads(got.body)
    assert (event["type"], event["data"]["id"]) == ("job.failed", bad["id"])
    assert event["data"]["error"]["code"] == "boom"
    wait_until(lambda: http.get(f"/v1/jobs/{good['id']}").json()["status"] == "succeeded")
    assert deliveries(http, job_id=good["id"]) == []


def test_online_requests_may_have_one(http: httpx.Client, receiver: Receiver) -> None:
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hi"}],
        "webhook": {"url": receiver.url},
    }
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert json.loads(receiver.wait_for(1)[0].body)["type"] == "job.succeeded"
    body["webhook"] = {"url": "http://10.0.0.1/"}
    refused = http.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "webhook.url")


@pytest.fixture
def client(http: httpx.Client, key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key=key, max_retries=0) as client:
        yield client


def upload(client: openai.OpenAI, *bodies: dict[str, Any]) -> str:
    lines = [
        {"custom_id": f"{n}", "method": "POST", "url": "/v1/jobs", "body": body}
        for n, body in enumerate(bodies)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    return client.files.create(file=("lines.jsonl", content.encode()), purpose="batch").id


def test_the_end_of_a_batch_is_told_in_openai_s_form(
    http: httpx.Client, client: openai.OpenAI, receiver: Receiver
) -> None:
    file_id = upload(
        client, {"prompt": "x"}, {"prompt": "x fail=boom"}, {"prompt": "x", "webhook": {"url": URL}}
    )
    batch = client.batches.create(
        input_file_id=file_id,
        endpoint="/v1/jobs",  # type: ignore[arg-type]
        completion_window="24h",
        metadata={"night": "7"},
        extra_body={"webhook": {"url": receiver.url}},
    )
    [got] = receiver.wait_for(1, 20)
    headers = {f"{name}": value for name, value in got.headers.items()}
    event = client.webhooks.unwrap(got.body.decode(), headers, secret=secret(http))
    assert event.type == "batch.completed"
    assert event.data.id == batch.id
    data = json.loads(got.body)["data"]
    record = http.get(f"/v1/batches/{batch.id}").json()
    assert record["webhook"]["url"] == receiver.url
    for name in ("status", "metadata", "request_counts", "output_file_id", "error_file_id"):
        assert data[name] == record[name], name
    assert data["request_counts"] == {"total": 3, "completed": 1, "failed": 2, "cancelled": 0, "expired": 0}
    errors = client.files.content(record["error_file_id"]).text
    assert "body.webhook: a batch has one for all its lines" in errors
    assert delivered(http, batch_id=batch.id)["type"] == "batch.completed"

    again = http.post(f"/v1/batches/{batch.id}/retry").json()
    assert again["webhook"] == record["webhook"]
    second = receiver.wait_for(2, 20)[1]
    assert json.loads(second.body)["data"]["id"] == again["id"]


def test_a_cancelled_batch_is_told_where_that_was_asked_for(
    client: openai.OpenAI, http: httpx.Client, receiver: Receiver
) -> None:
    batch = client.batches.create(
        input_file_id=upload(client, {"prompt": "x delay=20"}, {"prompt": "x", "priority": "refused"}),
        endpoint="/v1/jobs",  # type: ignore[arg-type]
        completion_window="24h",
        extra_body={"webhook": {"url": receiver.url, "events": ["batch.cancelled"]}},
    )
    wait_until(lambda: http.get(f"/v1/batches/{batch.id}").json()["status"] == "in_progress")
    client.batches.cancel(batch.id)
    [got] = receiver.wait_for(1, 20)
    event = json.loads(got.body)
    assert (event["type"], event["data"]["id"]) == ("batch.cancelled", batch.id)
    counts = {"total": 2, "completed": 0, "failed": 1, "cancelled": 1, "expired": 0}
    record = http.get(f"/v1/batches/{batch.id}").json()
    assert event["data"]["request_counts"] == record["request_counts"] == counts


@pytest.mark.parametrize(
    ("webhook", "param", "part"),
    [
        ({}, "webhook.url", "required"),
        ({"url": 5}, "webhook.url", "string"),
        ({"url": "example.com"}, "webhook.url", "must look like https://example.com/path"),
        ({"url": "ftp://example.com/"}, "webhook.url", "must look like"),
        ({"url": "http://user:pw@example.com/"}, "webhook.url", "must look like"),
        ({"url": "http://example.com:99999/"}, "webhook.url", "has no such port"),
        ({"url": "https://example.com/" + "a" * 2000}, "webhook.url", "2000 characters"),
        ({"url": "http://10.0.0.1/"}, "webhook.url", "10.0.0.1 does not lead to public addresses"),
        ({"url": "http://10.0.0.1/"}, "webhook.url", "to such as the setting MEDUSAQ_WEBHOOK_ALLOW allows"),
        ({"url": "http://0x7f.2/"}, "webhook.url", "does not lead to public addresses"),
        ({"url": "http://[::1]/"}, "webhook.url", "to such as the setting MEDUSAQ_WEBHOOK_ALLOW allows"),
        ({"url": "http://169.254.169.254/latest/"}, "webhook.url", "does not lead to public addresses"),
        ({"url": "http://" + "a" * 64 + ".com/"}, "webhook.url", "is no name of a host"),
        ({"url": URL, "events": []}, "webhook.events", "at least 1"),
        ({"url": URL, "events": ["job.failed"] * 5}, "webhook.events", "at most 4"),
        ({"url": URL, "events": ["job.done"]}, "webhook.events.0", "job.succeeded"),
        ({"url": URL, "events": ["batch.completed"]}, "webhook.events.0", "job.succeeded"),
        ({"url": URL, "secret": "x"}, "webhook.secret", "no such field"),
        ("https://example.com/", "webhook", "object"),
    ],
)
def test_what_is_wrong_with_one_is_said(http: httpx.Client, webhook: object, param: str, part: str) -> None:
    response = submit(http, webhook)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert part in error["message"]
    assert error["message"].startswith(param)


def test_and_of_a_batch(http: httpx.Client, client: openai.OpenAI) -> None:
    file_id = upload(client, {"prompt": "x"})
    for webhook, param in (
        ({"url": "http://127.1.2.3/"}, "webhook.url"),
        ({"url": "nowhere"}, "webhook.url"),
        ({"url": URL, "events": ["job.failed"]}, "webhook.events.0"),
    ):
        body = {"input_file_id": file_id, "endpoint": "/v1/jobs", "webhook": webhook}
        response = http.post("/v1/batches", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_each_key_has_its_own_deliveries_and_secret(
    http: httpx.Client, theirs: httpx.Client, gateway: GatewayProcess, receiver: Receiver
) -> None:
    job_id = submit(theirs, {"url": receiver.url}).json()["id"]
    found = delivered(theirs, job_id=job_id)
    [got] = receiver.wait_for(1)
    Verifier(secret(theirs)).verify(got.body, got.headers)
    assert secret(theirs) != secret(http)
    assert deliveries(http, job_id=job_id) == []
    assert found["id"] not in [d["id"] for d in deliveries(http, limit=100)]
    for method, end in (("GET", ""), ("POST", "/replay")):
        path = f"/v1/webhooks/deliveries/{found['id']}{end}"
        answer = http.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "delivery_not_found")
        assert gateway.http.request(method, path).status_code == 401, "without any key"
    refused = http.get("/v1/webhooks/deliveries", params={"after": found["id"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


def test_what_failed_is_found_and_replayed(http: httpx.Client, receiver: Receiver) -> None:
    receiver.answer = status(500)
    job_id = submit(http, {"url": receiver.url}).json()["id"]
    failed = delivered(http, job_id=job_id)
    assert [a["status_code"] for a in failed["attempts"]] == [500, 500]
    assert failed in deliveries(http, status="failed")
    assert failed not in deliveries(http, status="delivered")
    assert deliveries(http, status="pending", job_id=job_id) == []
    receiver.answer = status(200)
    replayed = http.post(f"/v1/webhooks/deliveries/{failed['id']}/replay")
    assert (replayed.status_code, replayed.json()["status"]) == (200, "pending")
    again = delivered(http, job_id=job_id)
    assert (again["status"], len(again["attempts"])) == ("delivered", 3)
    assert {got.headers["webhook-id"] for got in receiver.got} == {failed["id"]}


def test_lists_come_in_pages(theirs: httpx.Client, receiver: Receiver) -> None:
    jobs = [submit(theirs, {"url": receiver.url}).json()["id"] for _ in range(3)]
    for job_id in jobs:
        delivered(theirs, job_id=job_id)
    first = theirs.get("/v1/webhooks/deliveries", params={"limit": 2}).json()
    assert (first["object"], first["has_more"], len(first["data"])) == ("list", True, 2)
    after = {"after": first["last_id"]}
    rest = theirs.get("/v1/webhooks/deliveries", params=after).json()
    assert (rest["has_more"], len(rest["data"])) == (False, 1)
    assert {d["object_id"] for d in first["data"] + rest["data"]} == set(jobs)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"status": "sent"}, "status"),
        ({"limit": "0"}, "limit"),
        ({"x": "y"}, "x"),
        ({"job_id": ""}, "job_id"),
        ({"batch_id": ""}, "batch_id"),
        ({"job_id": jobs[0], "batch_id": "batch_x"}, "job_id"),
        ({"job_id": jobs[:2]}, "job_id"),
    ]
    for params, param in wrong:
        refused = theirs.get("/v1/webhooks/deliveries", params=params)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_a_secret_is_changed_without_losing_a_message(http: httpx.Client, receiver: Receiver) -> None:
    before = secret(http)
    rotated = http.post("/v1/webhooks/secret/rotate").json()
    assert rotated["previous"] == before != rotated["current"]
    assert secret(http) == rotated["current"]
    submit(http, {"url": receiver.url})
    [got] = receiver.wait_for(1)
    for one in (before, rotated["current"]):
        Verifier(one).verify(got.body, got.headers)
    too_soon = http.post("/v1/webhooks/secret/rotate")
    assert (too_soon.status_code, too_soon.json()["error"]["code"]) == (409, "secret_changing")
    assert too_soon.headers["x-should-retry"] == "false"
    assert http.get("/v1/webhooks/secret").json() == rotated


def test_secrets_of_the_settings_are_not_shown(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = new_secret()
    settings = fast_settings(redis_server)
    monkeypatch.setattr("tests.api.conftest.environment", _with_secret(own))
    gateway = GatewayProcess(settings, tmp_path_factory.mktemp("gateway"))
    try:
        for method, path in (("GET", "secret"), ("POST", "secret/rotate")):
            answer = gateway.http.request(method, f"/v1/webhooks/{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "secret_fixed")
            assert own not in answer.text
    finally:
        gateway.stop()


def _with_secret(own: str) -> Any:
    from tests.support.workers import environment

    return lambda settings: environment(settings) | {"MEDUSAQ_WEBHOOK_SECRETS": own}
