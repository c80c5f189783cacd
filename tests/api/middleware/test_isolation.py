"""Two keys that cannot see each other's things, through any endpoint that the OpenAPI document names.

A new endpoint is covered by itself, and so is a new parameter. A parameter of a kind that is not known here,
an id of a thing under a new name, and a route that is not in the document fail until somebody says whose it
is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from api.app import create_app
from api.middleware.auth import METRICS, PUBLIC
from tasks.base.settings import Settings
from tasks.records.api_key import Limits
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.api.forms import form
from tests.support.peers.receivers import LOOPBACK
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.tuned import constants
from tests.support.workers import Workers, wait_until

pytestmark = pytest.mark.stack

MARK = "only-for-the-first-key"  # in every text that the first key sends
SHARED = {"model_id"}  # path parameters of things that belong to no key: models are the workers'
KINDS = {
    "jobs": "job_id",
    "responses": "response_id",
    "batches": "batch_id",
    "files": "file_id",
    "webhooks/deliveries": "delivery_id",
}
NAMING = re.compile(r"\w+_id|after|before")  # query parameters that take the id of a thing
HEADERS = {"Prefer": "wait=1", "Idempotency-Key": MARK}  # the first key has used the latter
UNDOCUMENTED = {
    "/",
    "/docs",
    "/openapi.json",
}  # for people, as are the files below the next; the same for all
PAGES = ("/docs/", "/console/")
METHODS = ("get", "post", "put", "patch", "delete")
APP = create_app(Settings(_env_file=None))  # type: ignore[call-arg]
DOCUMENT = APP.openapi()
OPERATIONS = [
    (method, path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
    if method in METHODS
]
NAMES = [f"{method} {path}" for method, path, _ in OPERATIONS]
QUERIES = [
    pytest.param(method, path, operation, parameter, id=f"{method} {path}?{parameter['name']}")
    for method, path, operation in OPERATIONS
    for parameter in operation.get("parameters", ())
    if parameter["in"] == "query"
]


@dataclass
class Two:
    """One key that has one of everything, two that have nothing."""

    first: httpx.Client
    second: httpx.Client
    third: httpx.Client
    nobody: httpx.Client
    ids: dict[str, str]  # of what the first has, by the name of the path parameter

    def fill(self, path: str) -> str:
        """A path with the ids of the first key's things in it."""
        for name in re.findall(r"{(\w+)(?::\w+)?}", path):
            assert name in self.ids or name in SHARED, f"{path}: whose is a {name}? Say it in this test"
            path = re.sub(rf"{{{name}(:\w+)?}}", self.ids.get(name, "scripted"), path)
        return path

    def records(self) -> dict[str, Any]:
        """What the first key's things are, as the gateway tells it."""
        return {kind: self.first.get(f"/v1/{kind}/{self.ids[name]}").json() for kind, name in KINDS.items()}


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, webhook_allow=LOOPBACK)


@pytest.fixture(scope="module")
def two(gateway: GatewayProcess, gateway_settings: Settings, model_worker: Workers) -> Iterator[Two]:
    model_worker.io(gateway_settings, constants({"tasks.webhooks.store.SCHEDULE": {"retries_s": []}}))
    store = JobStore(gateway_settings)
    secrets = [KeyStore(store.db).create(name, Limits())[1] for name in ("first", "second", "third")]
    store.close()
    clients = [
        httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {secret}"}, timeout=20)
        for secret in secrets
    ]
    wait_until(lambda: gateway.http.get("/v1/jobs").status_code == 401)
    first, second, third = clients
    yield Two(first, second, third, gateway.http, _things(first))
    for client in clients:
        client.close()


def _things(client: httpx.Client) -> dict[str, str]:
    """A job, a file, and a batch of it that has ended with an answer and a failure: of each what it has."""
    line = {"custom_id": MARK, "method": "POST", "url": "/v1/jobs"}
    lines = [
        {**line, "body": {"prompt": MARK}},
        {**line, "custom_id": f"{MARK}-2", "body": {"prompt": f"{MARK} fail=x"}},
    ]
    content = "".join(json.dumps(each) + "\n" for each in lines).encode()
    boundary = {"Content-Type": "multipart/form-data; boundary=B"}
    parts = form(("purpose", "batch"), ("file", content, f"{MARK}.jsonl"))
    nowhere = {"url": f"http://127.0.0.1:{free_port()}/{MARK}"}
    sent = {"prompt": MARK, "webhook": nowhere, "metadata": {"name": MARK}}
    job = client.post("/v1/jobs", json=sent, headers={**HEADERS, "Prefer": "wait=20"}).json()
    response = client.post("/v1/responses", json={"input": MARK}).json()
    file = client.post("/v1/files", content=parts, headers=boundary | HEADERS).json()
    asked = {"input_file_id": file["id"], "endpoint": "/v1/jobs", "metadata": {"name": MARK}}
    batch = client.post("/v1/batches", json=asked, headers=HEADERS).json()
    wait_until(lambda: client.get(f"/v1/batches/{batch['id']}").json()["status"] == "completed")
    deliveries = "/v1/webhooks/deliveries?status=failed"
    wait_until(lambda: len(client.get(deliveries).json()["data"]) == 1)
    (delivery,) = client.get(deliveries).json()["data"]
    return {
        "job_id": job["id"],
        "response_id": response["id"],
        "file_id": file["id"],
        "batch_id": batch["id"],
        "delivery_id": delivery["id"],
    }


def ask(
    client: httpx.Client,
    method: str,
    path: str,
    operation: dict[str, Any],
    two: Two,
    query: dict[str, str] | None = None,
) -> httpx.Response:
    """With a body that names the first key's things, where the endpoint takes one, and its headers."""
    headers = {}
    for name in (each["name"] for each in operation.get("parameters", ()) if each["in"] == "header"):
        assert name in HEADERS, f"what does the header {name} do? Say it in this test"
        headers[name] = HEADERS[name]
    content = operation.get("requestBody", {}).get("content", {})
    body = None
    if "application/json" in content:
        body = _body(content["application/json"]["schema"], two)
    return client.request(method, path, json=body, headers=headers, params=query)


def queries(parameter: dict[str, Any], two: Two) -> Iterator[tuple[dict[str, str], str | None]]:
    """What to ask for by this parameter, and the id in it of a thing of the first key's."""
    name, schema = parameter["name"], parameter["schema"]
    if "enum" in schema:
        yield from (({name: value}, None) for value in schema["enum"])
    elif schema.get("type") == "integer":
        yield {name: str(schema["maximum"])}, None
    elif schema.get("type") == "boolean":
        yield {name: "true"}, None
    elif parameter.get("style") == "deepObject":
        yield {f"{name}[name]": MARK}, MARK
        yield from (({f"{name}[{kind}]": thing}, thing) for kind, thing in two.ids.items())
    else:
        assert NAMING.fullmatch(name), f"what does ?{name}= name? Say it in this test"
        yield from (({name: thing}, thing) for thing in two.ids.values())


def _body(schema: dict[str, Any], two: Two) -> dict[str, Any]:
    """The least that the schema asks for, and every id that it takes."""
    schema = _resolved(schema)
    body: dict[str, Any] = {}
    for name, field in schema.get("properties", {}).items():
        if name.endswith("_id"):
            kind = re.sub(r"^.*?((file|batch|job)_id)$", r"\1", name)
            assert kind in two.ids, f"whose is a {name}? Say it in this test"
            body[name] = two.ids[kind]
        elif name in schema.get("required", ()):
            body[name] = _example(_resolved(field))
    return body


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]  # type: ignore[no-any-return]
    return schema


def _example(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][-1]
    examples = {"array": [], "integer": 1, "number": 1, "boolean": False, "object": {}}
    return examples.get(schema.get("type", "string"), "x")


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=NAMES)
def test_without_a_key_nothing_is_told(two: Two, method: str, path: str, operation: dict[str, Any]) -> None:
    answer = ask(two.nobody, method, two.fill(path), operation, two)
    if path in PUBLIC or path == METRICS:
        assert answer.status_code == 200
        assert MARK not in answer.text
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "missing_api_key")


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=NAMES)
def test_the_things_of_another_key(two: Two, method: str, path: str, operation: dict[str, Any]) -> None:
    before = two.records()
    answer = ask(two.second, method, two.fill(path), operation, two)
    assert MARK not in answer.text
    owned = set(re.findall(r"{(\w+)(?::\w+)?}", path)) - SHARED
    if owned:
        assert answer.status_code == 404, f"{owned} of another key"
        assert answer.json()["error"]["code"].endswith("_not_found")
    elif method == "get":
        assert answer.status_code == 200
        assert not [each for each in two.ids.values() if each in answer.text]
    if any(name.endswith("_id") for name in _named(operation)):
        assert 400 <= answer.status_code < 500, "it names a thing of another key"
    assert answer.status_code != 409, "what another key has sent under this Idempotency-Key is its own"
    assert two.records() == before


@pytest.mark.parametrize(("method", "path", "operation", "parameter"), QUERIES)
def test_no_query_shows_the_things_of_another_key(
    two: Two, method: str, path: str, operation: dict[str, Any], parameter: dict[str, Any]
) -> None:
    """An id of another key's thing is answered as one that never was."""
    before = two.records()
    for query, thing in queries(parameter, two):
        assert ask(two.nobody, method, two.fill(path), operation, two, query).status_code == 401
        text = (answer := ask(two.second, method, two.fill(path), operation, two, query)).text
        assert answer.status_code < 500
        if thing is not None:
            if method == "get":
                unknown = {name: "x" * len(thing) for name in query}
                other = ask(two.second, method, two.fill(path), operation, two, unknown)
                assert (answer.status_code, text.replace(thing, "x" * len(thing))) == (
                    other.status_code,
                    other.text,
                )
            text = text.replace(thing, "")  # which an error may repeat
        assert MARK not in text
        if (filled := two.fill(path)) != path and answer.status_code == 404:  # which repeats the path's id
            text = re.sub("|".join(each for each in two.ids.values() if each in filled), "", text)
        assert not [each for each in two.ids.values() if each in text]
    assert two.records() == before


def test_every_route_is_in_the_document() -> None:
    """Or is named here: the tests above are made from the document."""
    served = {
        (method.lower(), re.sub(r":\w+}", "}", route.path or ""))
        for route in iter_route_contexts(APP.routes)
        for method in route.methods or ("ANY",)
        if method != "HEAD"
    }
    documented = {(method, path) for method, path, _ in OPERATIONS}
    hidden = served - documented
    assert {each for each in hidden if each[1] not in UNDOCUMENTED and not each[1].startswith(PAGES)} == set()
    assert {method for method, _ in hidden} == {"get"}


def _named(operation: dict[str, Any]) -> set[str]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = _resolved(content.get("application/json", {}).get("schema", {}))
    return set(schema.get("properties", {}))


@pytest.mark.parametrize(("kind", "name"), [kind for kind in KINDS.items() if kind[0] != "responses"])
def test_a_list_begins_behind_ones_own_things_alone(two: Two, kind: str, name: str) -> None:
    assert two.ids[name] in two.first.get(f"/v1/{kind}").text
    after = two.second.get(f"/v1/{kind}", params={"after": two.ids[name]})
    unknown = two.second.get(f"/v1/{kind}", params={"after": "x"})
    assert after.status_code == unknown.status_code == 400
    assert after.text.replace(two.ids[name], "x") == unknown.text, "as if it did not exist"


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("jobs", {"metadata[batch_id]": "{batch_id}"}),
        ("jobs", {"status": "succeeded"}),
        ("jobs", {"status": "failed"}),
        ("webhooks/deliveries", {"status": "failed"}),
        ("webhooks/deliveries", {"job_id": "{job_id}"}),
        ("webhooks/deliveries", {"batch_id": "{batch_id}"}),
    ],
)
def test_filters_find_nothing_of_others(two: Two, kind: str, params: dict[str, str]) -> None:
    filled = {name: value.format(**two.ids) for name, value in params.items()}
    assert two.third.get(f"/v1/{kind}", params=filled).json()["data"] == []
    assert two.third.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []
    assert len(two.first.get("/v1/files", params={"purpose": "batch_output"}).json()["data"]) == 2


def test_the_results_of_a_batch_are_its_owners(two: Two) -> None:
    batch = two.first.get(f"/v1/batches/{two.ids['batch_id']}").json()
    for name in ("output_file_id", "error_file_id"):
        assert MARK in two.first.get(f"/v1/files/{batch[name]}/content").text
        for path in (f"/v1/files/{batch[name]}", f"/v1/files/{batch[name]}/content"):
            assert two.second.get(path).status_code == 404


def test_lists_page_through_ones_own_things(two: Two) -> None:
    mine = [two.third.post("/v1/jobs", json={"prompt": f"{n}"}).json()["id"] for n in range(3)]
    page = two.third.get("/v1/jobs", params={"limit": 2}).json()
    assert ([job["id"] for job in page["data"]], page["has_more"]) == (mine[:0:-1], True)
    rest = two.third.get("/v1/jobs", params={"after": mine[1]}).json()
    assert ([job["id"] for job in rest["data"]], rest["has_more"]) == (mine[:1], False)
