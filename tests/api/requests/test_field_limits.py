"""Limits of what a request may hold, from both sides: the last that is taken and runs, the first that is not.

Those of sizes and numbers of requests are in tests/api/middleware: test_body_limit.py and test_auth.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.requests.parsing import MAX_EXPIRY_S, MAX_IDEMPOTENCY_KEY, MAX_PAGE, MIN_EXPIRY_S
from api.service.online_request import MAX_CHOICES
from api.service.uploads import MAX_FIELD_BYTES
from tasks.base.settings import Settings
from tasks.records.batch import MAX_PRIORITY
from tasks.records.webhook import MAX_URL
from tasks.schema.job_request import (
    LAST_SECOND,
    MAX_BIASES,
    MAX_METADATA,
    MAX_STOP,
    MAX_STOPS,
    MAX_TOOLS,
    SEED_LIMIT,
)
from tasks.schema.table_request import MAX_COLUMN, MAX_COLUMNS, MAX_TEMPLATE
from tests.api.forms import FILE, FORM, PURPOSE, form
from tests.support.scripted import CONTEXT_LENGTH
from tests.support.servers import RedisServer, fast_settings
from tests.support.tuned import constants

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("model_worker")]

WAIT_S = 5
MANY = 2**31
USER = {"role": "user", "content": "hi"}
EVENTS = {"job": ["job.failed"], "batch": ["batch.failed"]}  # which do not come: nothing is sent


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server)


@pytest.fixture(scope="module")
def gateway_env() -> dict[str, str]:
    return constants({"api.requests.parsing.MOST_WAIT_S": WAIT_S})


def metadata(count: int = 1, key: int = 1, value: int = 1) -> dict[str, str]:
    return {f"{number}".rjust(key, "k"): "v" * value for number in range(count)}


def tools(count: int, name: int = 1) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f" * name}}] * count


def form_of(name: int) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n" * name, "schema": {"type": "object"}}}


def called(identity: str = "c", name: str = "f") -> dict[str, Any]:
    call = {"id": identity, "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}


def returned(call_id: str) -> dict[str, Any]:
    return {"messages": [USER, {"role": "tool", "content": "5", "tool_call_id": call_id}]}


def webhook(kind: str, length: int) -> dict[str, Any]:
    return {"url": "https://example.com/".ljust(length, "x"), "events": EVENTS[kind]}


def numbers(name: str, taken: tuple[Any, ...], refused: tuple[Any, ...]) -> list[tuple[Any, Any, str]]:
    """Each of a number's ends."""
    return [({name: good}, {name: bad}, name) for good, bad in zip(taken, refused, strict=True)]


# The last body that is taken, the first that is refused, and the field that is named then.
JOBS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"prompt": "x"}, {"prompt": ""}, "prompt"),
    ({"model": "scripted"}, {"model": ""}, "model"),
    *numbers("max_tokens", (1, CONTEXT_LENGTH), (0, CONTEXT_LENGTH + 1)),
    *numbers("temperature", (0, 2), (-0.001, 2.001)),
    *numbers("top_p", (1e-9, 1), (0, 1.001)),
    *numbers("top_k", (0, MANY - 1), (-1, MANY)),
    *numbers("min_p", (0, 1), (-0.001, 1.001)),
    *numbers("seed", (0, SEED_LIMIT - 1), (-1, SEED_LIMIT)),
    *numbers("repetition_penalty", (1e-3, 10), (0, 10.001)),
    *numbers("presence_penalty", (-2, 2), (-2.001, 2.001)),
    *numbers("frequency_penalty", (-2, 2), (-2.001, 2.001)),
    *numbers("logprobs", (0, 20), (-1, 21)),
    *numbers("deadline", (LAST_SECOND,), (LAST_SECOND + 1,)),
    ({"stop": ["#"] * MAX_STOPS}, {"stop": ["#"] * (MAX_STOPS + 1)}, "stop"),
    ({"stop": ["#"]}, {"stop": [""]}, "stop.0"),
    ({"stop": "#" * MAX_STOP}, {"stop": "#" * (MAX_STOP + 1)}, "stop.0"),
    ({"stop_token_ids": [1] * MAX_STOPS}, {"stop_token_ids": [1] * (MAX_STOPS + 1)}, "stop_token_ids"),
    ({"stop_token_ids": [0]}, {"stop_token_ids": [-1]}, "stop_token_ids.0"),
    ({"stop_token_ids": [MANY - 1]}, {"stop_token_ids": [MANY]}, "stop_token_ids.0"),
    (
        {"logit_bias": {str(token): 1 for token in range(MAX_BIASES)}},
        {"logit_bias": {str(token): 1 for token in range(MAX_BIASES + 1)}},
        "logit_bias",
    ),
    ({"logit_bias": {"5": 100}}, {"logit_bias": {"5": 100.001}}, "logit_bias.5"),
    ({"logit_bias": {"5": -100}}, {"logit_bias": {"5": -100.001}}, "logit_bias.5"),
    ({"logit_bias": {"9" * 9: 1}}, {"logit_bias": {"9" * 10: 1}}, f"logit_bias.{'9' * 10}.[key]"),
    ({"metadata": metadata(MAX_METADATA)}, {"metadata": metadata(MAX_METADATA + 1)}, "metadata"),
    ({"metadata": metadata(key=64)}, {"metadata": metadata(key=65)}, f"metadata.{'k' * 64}0.[key]"),
    ({"metadata": {"k": "v"}}, {"metadata": {"": "v"}}, "metadata..[key]"),
    ({"metadata": metadata(value=512)}, {"metadata": metadata(value=513)}, "metadata.0"),
    ({"webhook": webhook("job", MAX_URL)}, {"webhook": webhook("job", MAX_URL + 1)}, "webhook.url"),
    ({"webhook": webhook("job", 30)}, {"webhook": webhook("job", 30) | {"events": []}}, "webhook.events"),
    (
        {"webhook": {"url": "https://example.com:65535/", "events": EVENTS["job"]}},
        {"webhook": {"url": "https://example.com:65536/", "events": EVENTS["job"]}},
        "webhook.url",
    ),
    ({"response_format": form_of(64)}, {"response_format": form_of(65)}, "response_format.json_schema.name"),
]
CHATS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"messages": [USER]}, {"messages": []}, "messages"),
    ({"messages": [USER | {"name": "n"}]}, {"messages": [USER | {"name": ""}]}, "messages.0.name"),
    (
        {"messages": [USER | {"name": "n" * 64}]},
        {"messages": [USER | {"name": "n" * 65}]},
        "messages.0.name",
    ),
    (
        called(),
        {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": []}]},
        "messages.1.tool_calls",
    ),
    (called(), called(identity=""), "messages.1.tool_calls.0.id"),
    (called(), called(name=""), "messages.1.tool_calls.0.function.name"),
    (returned("c"), returned(""), "messages.1.tool_call_id"),
    ({"tools": tools(1)}, {"tools": tools(0)}, "tools"),
    ({"tools": tools(MAX_TOOLS)}, {"tools": tools(MAX_TOOLS + 1)}, "tools"),
    ({"tools": tools(1, name=64)}, {"tools": tools(1, name=65)}, "tools.0.function.name"),
]


def named(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, response.json()["error"]["param"]


def ids(rows: list[tuple[Any, Any, str]]) -> list[str]:
    return [f"{number} {param[:40]}" for number, (_, _, param) in enumerate(rows)]


@pytest.mark.parametrize(("taken", "refused", "param"), JOBS, ids=ids(JOBS))
def test_a_job(http: httpx.Client, taken: dict[str, Any], refused: dict[str, Any], param: str) -> None:
    _takes_and_refuses(http, {"prompt": "hi"}, taken, refused, param)


@pytest.mark.parametrize(("taken", "refused", "param"), CHATS, ids=ids(CHATS))
def test_a_job_of_messages(
    http: httpx.Client, taken: dict[str, Any], refused: dict[str, Any], param: str
) -> None:
    _takes_and_refuses(http, {"messages": [USER]}, taken, refused, param)


def _takes_and_refuses(
    http: httpx.Client, least: dict[str, Any], taken: dict[str, Any], refused: dict[str, Any], param: str
) -> None:
    ran = http.post("/v1/jobs", json=least | taken, headers={"Prefer": f"wait={WAIT_S}"})
    assert (ran.status_code, ran.json().get("status")) == (200, "succeeded"), ran.text
    assert named(http.post("/v1/jobs", json=least | refused)) == (400, param)


def prompts(count: int, n: int) -> dict[str, Any]:
    return {"prompt": ["x"] * count, "n": n}


COMPLETIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *numbers("n", (1, MAX_CHOICES), (0, MAX_CHOICES + 1)),
    *numbers("logprobs", (0, 20), (-1, 21)),
    *numbers("seed", (-SEED_LIMIT, SEED_LIMIT - 1), (-SEED_LIMIT - 1, SEED_LIMIT)),
    *numbers("max_tokens", (1, CONTEXT_LENGTH), (0, CONTEXT_LENGTH + 1)),
    (prompts(MAX_CHOICES, 1), prompts(MAX_CHOICES + 1, 1), "prompt"),
    (prompts(MAX_CHOICES // 2, 2), prompts(MAX_CHOICES // 2 + 1, 2), "prompt"),
]
ONLINE_CHATS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *numbers("n", (1, MAX_CHOICES), (0, MAX_CHOICES + 1)),
    *numbers("max_completion_tokens", (1, CONTEXT_LENGTH), (0, CONTEXT_LENGTH + 1)),
    ({"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 0}, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
]
GENERATED = numbers("max_length", (1, CONTEXT_LENGTH), (0, CONTEXT_LENGTH + 1))


@pytest.mark.parametrize(
    ("path", "least", "row"),
    [
        *(("/v1/completions", {"prompt": "x"}, row) for row in COMPLETIONS),
        *(("/v1/chat/completions", {"messages": [USER]}, row) for row in ONLINE_CHATS),
        *(("/generate/normal", {"prompt": "x"}, row) for row in GENERATED),
    ],
)
def test_an_online_request(
    http: httpx.Client, path: str, least: dict[str, Any], row: tuple[dict[str, Any], dict[str, Any], str]
) -> None:
    taken, refused, param = row
    answered = http.post(path, json=least | taken)
    assert answered.status_code == 200, answered.text
    if path.startswith("/v1"):
        several = len(taken["prompt"]) if "prompt" in taken else 1
        assert len(answered.json()["choices"]) == taken.get("n", 1) * several
    assert named(http.post(path, json=least | refused)) == (400, param)


def expiry(seconds: int) -> dict[str, Any]:
    return {"output_expires_after": {"anchor": "created_at", "seconds": seconds}}


def table(**fields: Any) -> dict[str, Any]:
    return {"template": "x", **fields}


def names(count: int) -> list[str]:
    return [f"{number}" for number in range(count)]


SECONDS = "output_expires_after.seconds"
BATCHES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"model": "scripted"}, {"model": ""}, "model"),
    ({}, {"input_file_id": ""}, "input_file_id"),
    *numbers("priority", (-MAX_PRIORITY, MAX_PRIORITY), (-MAX_PRIORITY - 1, MAX_PRIORITY + 1)),
    *numbers("deadline", (LAST_SECOND,), (LAST_SECOND + 1,)),
    (expiry(MIN_EXPIRY_S), expiry(MIN_EXPIRY_S - 1), SECONDS),
    (expiry(MAX_EXPIRY_S), expiry(MAX_EXPIRY_S + 1), SECONDS),
    ({"metadata": metadata(MAX_METADATA)}, {"metadata": metadata(MAX_METADATA + 1)}, "metadata"),
    ({"metadata": metadata(key=64)}, {"metadata": metadata(key=65)}, f"metadata.{'k' * 64}0.[key]"),
    ({"metadata": metadata(value=512)}, {"metadata": metadata(value=513)}, "metadata.0"),
    (
        {"webhook": webhook("batch", 30)},
        {"webhook": webhook("batch", 30) | {"events": []}},
        "webhook.events",
    ),
    ({"webhook": webhook("batch", MAX_URL)}, {"webhook": webhook("batch", MAX_URL + 1)}, "webhook.url"),
    (table(), table(template=""), "template"),
    (table(template="x" * MAX_TEMPLATE), table(template="x" * (MAX_TEMPLATE + 1)), "template"),
    (table(system="x"), table(system=""), "system"),
    (table(system="x" * MAX_TEMPLATE), table(system="x" * (MAX_TEMPLATE + 1)), "system"),
    (table(id_column="c"), table(id_column=""), "id_column"),
    (table(id_column="c" * MAX_COLUMN), table(id_column="c" * (MAX_COLUMN + 1)), "id_column"),
    (table(columns=["c"]), table(columns=[]), "columns"),
    (table(columns=["c"]), table(columns=[""]), "columns.0"),
    (table(columns=["c" * MAX_COLUMN]), table(columns=["c" * (MAX_COLUMN + 1)]), "columns.0"),
    (table(columns=names(MAX_COLUMNS)), table(columns=names(MAX_COLUMNS + 1)), "columns"),
]


@pytest.fixture(scope="module")
def file_id(gateway: Any) -> str:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/jobs", "body": {"prompt": "hi"}}
    content = form(PURPOSE, ("file", json.dumps(line).encode(), "a.jsonl"))
    return str(gateway.http.post("/v1/files", content=content, headers=FORM).json()["id"])


@pytest.mark.parametrize(("taken", "refused", "param"), BATCHES, ids=ids(BATCHES))
def test_a_batch(
    http: httpx.Client, file_id: str, taken: dict[str, Any], refused: dict[str, Any], param: str
) -> None:
    least = {"input_file_id": file_id, "endpoint": "/v1/jobs"}
    made = http.post("/v1/batches", json=least | taken)
    assert (made.status_code, made.json().get("status")) == (200, "validating"), made.text
    assert named(http.post("/v1/batches", json=least | refused)) == (400, param)


RETRIES = numbers("max_tokens", (1, MANY - 1), (0, MANY))


@pytest.mark.parametrize(("taken", "refused", "param"), RETRIES, ids=ids(RETRIES))
def test_a_retry(
    http: httpx.Client, file_id: str, taken: dict[str, Any], refused: dict[str, Any], param: str
) -> None:
    batch = {"input_file_id": file_id, "endpoint": "/v1/jobs", "dry_run": True}
    path = f"/v1/batches/{http.post('/v1/batches', json=batch).json()['id']}/retry"
    code = http.post(path, json=taken).json()["error"]["code"]
    assert code in ("batch_not_ended", "nothing_failed"), "which is looked at next"
    assert named(http.post(path, json=refused)) == (400, param)


@pytest.mark.parametrize(
    ("least_s", "refused_s"), [(MIN_EXPIRY_S, MIN_EXPIRY_S - 1), (MAX_EXPIRY_S, MAX_EXPIRY_S + 1)]
)
def test_how_long_a_file_is_kept(http: httpx.Client, least_s: int, refused_s: int) -> None:
    def upload(seconds: int) -> httpx.Response:
        after = ("expires_after[anchor]", "created_at"), ("expires_after[seconds]", f"{seconds}")
        return http.post("/v1/files", content=form(PURPOSE, *after, FILE), headers=FORM)

    made = upload(least_s).json()
    assert made["expires_at"] - made["created_at"] in (least_s, least_s + 1)
    assert named(upload(refused_s)) == (400, "expires_after[seconds]")


@pytest.mark.parametrize(("size", "message"), [(0, "must be batch"), (1, "must have at most 1024 bytes")])
def test_the_text_of_a_field_of_a_form(http: httpx.Client, size: int, message: str) -> None:
    """Nothing so long is any good, but it is read up to there."""
    sent = form(("purpose", "b" * (MAX_FIELD_BYTES + size)), FILE)
    answer = http.post("/v1/files", content=sent, headers=FORM)
    assert named(answer) == (400, "purpose")
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/batches", "/v1/files", "/v1/batches/{}/retry"])
@pytest.mark.parametrize(("taken", "refused"), [(1, 0), (MAX_IDEMPOTENCY_KEY, MAX_IDEMPOTENCY_KEY + 1)])
def test_an_idempotency_key(http: httpx.Client, file_id: str, path: str, taken: int, refused: int) -> None:
    batch: dict[str, Any] = {"input_file_id": file_id, "endpoint": "/v1/jobs"}
    batch_id = http.post("/v1/batches", json=batch | {"dry_run": True}).json()["id"]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/jobs": {"json": {"prompt": "hi"}},
        "/v1/batches": {"json": batch},
        "/v1/files": {"content": form(PURPOSE, FILE)},
    }
    sent = bodies.get(path, {})
    headers: dict[str, str] = FORM if "content" in sent else {}
    letter = "r" if path.endswith("retry") else "k"  # batches have the keys of both
    answers = [
        http.post(path.format(batch_id), headers={**headers, "Idempotency-Key": letter * length}, **sent)
        for length in (taken, refused)
    ]
    assert named(answers[1]) == (400, "Idempotency-Key")
    if path.endswith("retry"):  # of a batch that has no failures, which is looked at next
        assert answers[0].json()["error"]["code"] in ("batch_not_ended", "nothing_failed")
    else:
        assert answers[0].status_code < 300, answers[0].text


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/jobs"), ("GET", "/v1/jobs/{}"), ("POST", "/generate/normal")]
)
@pytest.mark.parametrize(("taken", "refused"), [(0, -1), (WAIT_S, WAIT_S + 1)])
def test_how_long_is_waited(http: httpx.Client, method: str, path: str, taken: int, refused: int) -> None:
    path = path.format(http.post("/v1/jobs", json={"prompt": "hi"}).json()["id"])
    body = {"prompt": "hi"} if method == "POST" else None
    done, not_done = (
        http.request(method, path, json=body, headers={"Prefer": f"wait={seconds}"})
        for seconds in (taken, refused)
    )
    assert done.status_code < 300 or done.json()["error"]["code"] == "not_in_time", done.text
    assert named(not_done) == (400, "Prefer")


DOCUMENT = create_app(Settings(_env_file=None)).openapi()  # type: ignore[call-arg]
LISTS = [
    path
    for path, operations in DOCUMENT["paths"].items()
    if "limit" in {parameter["name"] for parameter in operations.get("get", {}).get("parameters", ())}
]


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(("taken", "refused"), [(1, 0), (MAX_PAGE, MAX_PAGE + 1)])
def test_how_long_a_page_may_be(http: httpx.Client, path: str, taken: int, refused: int) -> None:
    assert http.get(path, params={"limit": taken}).status_code == 200
    assert named(http.get(path, params={"limit": refused})) == (400, "limit")


BOUNDS = re.compile("(exclusive)?M(in|ax)imum|m(in|ax)(imum|Length|Items|Properties)")


def bounded(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The fields that a schema sets limits to, and those within them."""
    if "$ref" in schema:
        yield from bounded(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], path)
    if any(BOUNDS.fullmatch(keyword) for keyword in schema):
        yield path
    for name, field in schema.get("properties", {}).items():
        yield from bounded(field, (*path, name))
    for part in (schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", ())):
        if isinstance(part, dict):
            yield from bounded(part, path)


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        ("JobRequest", [*JOBS, *CHATS]),
        ("BatchRequest", BATCHES),
        ("RetryRequest", RETRIES),
        ("GenerateRequest", [*JOBS, *GENERATED]),
    ],
)
def test_no_limit_of_the_document_is_missing_here(model: str, rows: list[tuple[Any, Any, str]]) -> None:
    tested = {tuple(re.sub(r"\.(\d+|\[key\])(?=\.|$)", "", param).split(".")) for _, _, param in rows}
    tested |= {path[:1] for path in tested}  # of metadata and logit_bias the keys are their users'
    found = set(bounded(DOCUMENT["components"]["schemas"][model]))
    assert found, model
    assert found <= tested
