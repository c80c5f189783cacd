"""Ids that are none, wherever an id is taken: answered like one that is unknown, and nothing else is reached.

The paths and query parameters come from the OpenAPI document, so a new one is covered by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api.app import create_app
from tasks.base.settings import Settings
from tasks.records.ids import BATCH, DELIVERY, FILE, JOB, RESPONSE
from tasks.records.job import Status
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.api.forms import FILE as FILE_PART
from tests.api.forms import FORM, PURPOSE, form

pytestmark = pytest.mark.stack

KINDS = {
    "job_id": JOB,
    "batch_id": BATCH,
    "file_id": FILE,
    "delivery_id": DELIVERY,
    "response_id": RESPONSE,
}
NO_KEYS_OF_REDIS = {"model_id"}  # compared with the names of models, in memory
DOCUMENT = create_app(Settings(_env_file=None)).openapi()  # type: ignore[call-arg]
PATHS = [
    (method, path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
    if "{" in path
]
QUERIES = [
    (path, parameter["name"])
    for path, operations in DOCUMENT["paths"].items()
    for parameter in operations.get("get", {}).get("parameters", ())
    if parameter["in"] == "query" and (parameter["name"] == "after" or parameter["name"].endswith("_id"))
]
SUBKEYS = ("live", "ended", "parts", "codes", "attempts", "files")  # of keys that there are
NASTY = [
    "x:y",
    "x\n",
    "\x00",
    "ü☃",
    "*",
    "..",
    "%",
    "[a-z]",
    "a/b",
    "x" * 5000,  # three times as long in the path, which has a limit of its own
    " ",
    "{0}:{1}",  # a good id and a part of a sibling key, see _nasty()
    "{0}\n",
    "{0}\x00",
    "{0}*",
    "{0}-0",
    "{0}-",
    "{upper}",
]


def _nasty(good: str) -> Iterator[str]:
    for text in NASTY:
        for part in SUBKEYS if "{1}" in text else ("",):
            yield text.format(good, part, upper=good.upper()) if "{" in text else text


@pytest.fixture
def things(http: httpx.Client, gateway_settings: Settings) -> dict[str, str]:
    """Ids of things that there are, so that their sibling keys are there."""
    file = http.post("/v1/files", content=form(PURPOSE, FILE_PART), headers=FORM).json()["id"]
    batch = http.post("/v1/batches", json={"input_file_id": file, "endpoint": "/v1/jobs"}).json()["id"]
    sent = {"prompt": "x", "webhook": {"url": "http://example.com/"}, "metadata": {"k": "v"}}
    job = http.post("/v1/jobs", json=sent).json()["id"]
    store = JobStore(gateway_settings)
    store.db.redis.rpush(f"{store.db.prefix}batch:{batch}:parts", "p")
    store.db.redis.sadd(f"{store.db.prefix}batch:{batch}:live", job)
    store.cancel(job)
    [delivery] = http.get("/v1/webhooks/deliveries", params={"job_id": job}).json()["data"]
    store.db.redis.rpush(f"{store.db.prefix}hook:{delivery['id']}:attempts", "{}")
    store.close()
    response = job.replace("job_", "resp_")
    ids = {"job_id": job, "batch_id": batch, "file_id": file, "delivery_id": delivery["id"]}
    return ids | {"response_id": response}


def _keys(settings: Settings) -> set[str]:
    """What is in Redis, but for Celery's messages and keys that live for seconds."""
    store = JobStore(settings)
    found = {key for key in store.db.redis.scan_iter(f"{store.db.prefix}*") if store.db.redis.pttl(key) < 0}
    store.close()
    return {key for key in found if "medusaq." not in key}


def _unknown(answer: httpx.Response, name: str) -> None:
    body = answer.json()["error"]
    assert (answer.status_code, body["code"]) == (404, f"{name.removesuffix('_id')}_not_found"), answer.text
    assert len(answer.text) < 1000, "an id is repeated, but not without end"


@pytest.mark.parametrize(("method", "path", "operation"), PATHS, ids=[f"{m} {p}" for m, p, _ in PATHS])
def test_what_is_no_id_is_answered_like_an_unknown_one(
    http: httpx.Client,
    gateway_settings: Settings,
    things: dict[str, str],
    method: str,
    path: str,
    operation: dict[str, Any],
) -> None:
    [name] = re.findall(r"{(\w+)(?::\w+)?}", path)
    before = _keys(gateway_settings)
    known = things.get(name, "x")
    for text in _nasty(known):
        encoded = "".join(f"%{byte:02X}" for byte in text.encode())  # as it stands, ".." too
        answer = http.request(method, re.sub(r"{.*?}", encoded, path))
        if name in NO_KEYS_OF_REDIS or "/" in text:
            assert answer.status_code == 404, f"{text!r}: {answer.text}"
        else:
            _unknown(answer, name)
    if name not in NO_KEYS_OF_REDIS:
        unknown = KINDS[name].new()
        right = http.request(method, re.sub(r"{.*?}", unknown, path))
        wrong = http.request(method, re.sub(r"{.*?}", "x%3Ay", path))
        assert right.text.replace(unknown, "") == wrong.text.replace("x:y", ""), "the same answer"
        [shown] = [each for each in operation["parameters"] if each["in"] == "path"]
        assert shown["schema"]["pattern"] == KINDS[name].pattern
    assert _keys(gateway_settings) == before


@pytest.mark.parametrize(("method", "path"), [(m, p) for m, p, _ in PATHS])
def test_no_id_at_all(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, re.sub(r"{.*?}", "", path), follow_redirects=True)
    if method == "get" and answer.status_code == 200:  # a redirect to the list
        assert answer.json()["object"] == "list"
    else:
        assert answer.status_code in (404, 405)


@pytest.mark.parametrize(("path", "name"), QUERIES)
def test_what_is_no_id_in_a_query(
    http: httpx.Client, gateway_settings: Settings, things: dict[str, str], path: str, name: str
) -> None:
    before = _keys(gateway_settings)
    for good in [things[name]] if name in things else things.values():
        for text in _nasty(good):
            answer = http.get(path, params={name: text})
            if name == "after":
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after"), answer.text
            else:
                assert (answer.status_code, answer.json()["data"]) == (200, []), f"{text!r}: {answer.text}"
    assert _keys(gateway_settings) == before


def test_what_is_no_id_in_a_body(
    http: httpx.Client, gateway_settings: Settings, things: dict[str, str]
) -> None:
    before = _keys(gateway_settings)
    for good in things.values():
        for text in [*_nasty(good), *(f"{good}:{part}" for part in SUBKEYS)]:
            asked = {"input_file_id": text[:1000], "endpoint": "/v1/jobs"}
            answer = http.post("/v1/batches", json=asked)
            body = answer.json()["error"]
            told = (answer.status_code, body["code"], body["param"])
            assert told == (400, "file_not_found", "input_file_id"), answer.text
    assert _keys(gateway_settings) == before


def test_ids_that_are_given_out_match(things: dict[str, str]) -> None:
    for name, made in things.items():
        assert KINDS[name].matches(made), made


def test_idempotency_keys_of_all_forms(http: httpx.Client) -> None:
    """They come after the owner, who has no colon, and so reach no other key."""
    seen = set()
    for key in ("a", "a:b", "b:a", ":", "*", "job:anonymous:a", "x" * 255, "\u00fc"):
        headers = {"Idempotency-Key": key.encode("latin-1")}
        first = http.post("/v1/jobs", json={"prompt": "x"}, headers=headers)
        again = http.post("/v1/jobs", json={"prompt": "x"}, headers=headers)
        assert (first.status_code, again.status_code) == (202, 202), first.text
        assert first.json()["id"] == again.json()["id"]
        seen.add(first.json()["id"])
    assert len(seen) == 8
    too_long = http.post("/v1/jobs", json={"prompt": "x"}, headers={"Idempotency-Key": "x" * 256})
    assert (too_long.status_code, too_long.json()["error"]["param"]) == (400, "Idempotency-Key")


def test_metadata_of_all_forms(http: httpx.Client) -> None:
    odd = {"a": "b=c", "a=b": "c", "k:": "\n", "*": "[x]", "\x00": "\u2603", " ": ""}
    ids = {
        name: http.post("/v1/jobs", json={"prompt": "x", "metadata": {name: value}}).json()["id"]
        for name, value in odd.items()
    }
    for name, value in odd.items():
        found = http.get("/v1/jobs", params={f"metadata[{name}]": value})
        assert [job["id"] for job in found.json()["data"]] == [ids[name]], name


def test_what_redis_says_is_for_the_log(
    http: httpx.Client, gateway: GatewayProcess, gateway_settings: Settings
) -> None:
    """Here an index is of another type than the script takes."""
    store = JobStore(gateway_settings)
    index = f"{store.db.prefix}status:{Status.RUNNING.value}"
    store.db.redis.set(index, "x")
    try:
        answer = http.get("/v1/jobs", params={"status": Status.RUNNING.value})
    finally:
        store.db.redis.delete(index)
        store.close()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    for part in ("WRONGTYPE", "status:", "script", gateway_settings.key_prefix, "ERR"):
        assert part not in answer.text
    assert "WRONGTYPE" in gateway.log.read_text()
