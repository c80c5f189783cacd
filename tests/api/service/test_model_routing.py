"""A gateway before workers of several models: which request goes where, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import OpenAI

from api.service.model_routing import View, route
from tasks.base.settings import Settings
from tasks.store.jobs import JobStore
from tasks.store.workers import Registry, WorkerInfo
from tests.api.conftest import GatewayProcess
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers, wait_until

pytestmark = pytest.mark.stack

ONE, TWO = "one", "two"
HEADS = {"SCRIPTED_DRAFT_SOURCES": "medusa"}


@pytest.fixture(scope="module")
def workers_of_both(
    gateway_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    """The second has heads."""
    workers = Workers(tmp_path_factory.mktemp("workers"))
    workers.model(gateway_settings, env={"SCRIPTED_MODEL": ONE})
    workers.model(gateway_settings, env={"SCRIPTED_MODEL": TWO} | HEADS)
    workers.io(gateway_settings)
    yield workers
    workers.close()


@pytest.fixture
def both(workers_of_both: Workers, http: httpx.Client) -> httpx.Client:
    assert len(workers_of_both.all) == 3
    wait_until(lambda: {model["id"] for model in http.get("/v1/models").json()["data"]} >= {ONE, TWO})
    return http


def run(http: httpx.Client, **body: object) -> httpx.Response:
    return http.post("/v1/jobs", json={"prompt": "hello", **body}, headers={"Prefer": "wait=20"})


def error(response: httpx.Response) -> dict[str, str]:
    found: dict[str, str] = response.json()["error"]
    return found


def newest(http: httpx.Client) -> dict[str, object]:
    [job] = http.get("/v1/jobs", params={"limit": 1}).json()["data"]
    return dict(job)


def test_each_request_is_answered_by_its_model(both: httpx.Client, client: OpenAI) -> None:
    for model in (ONE, TWO):
        for priority in ("interactive", "bulk"):
            job = run(both, model=model, priority=priority).json()
            assert (job["status"], job["model"]) == ("succeeded", model)
        chat = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}])
        assert chat.model == model
        chunks = list(client.completions.create(model=model, prompt="x", stream=True))
        assert {chunk.model for chunk in chunks} == {model}
        assert both.post("/generate/normal", json={"prompt": "x", "model": model}).status_code == 200


def test_a_request_without_a_model_has_to_choose(both: httpx.Client) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}]}
    bodies = [
        ("/v1/jobs", {"prompt": "x"}),
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": "x"}),
    ]
    bodies += [(path, {"prompt": "x"}) for path in ("/generate/normal", "/generate/medusa", "/compare")]
    for path, body in bodies:
        refused = both.post(path, json=body)
        assert refused.status_code == 400, path
        assert error(refused) == {
            "message": "model: must be one of one, two, unless MEDUSAQ_DEFAULT_MODEL is set",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_required",
        }


def test_what_a_model_can_do_is_asked_of_its_own_workers(both: httpx.Client) -> None:
    assert error(run(both, model=ONE, decoding="medusa"))["code"] == "no_heads"
    assert run(both, model=TWO, decoding="medusa").json()["status"] == "succeeded"
    assert error(both.post("/compare", json={"prompt": "x", "model": ONE}))["code"] == "no_heads"
    assert both.post("/compare", json={"prompt": "x", "model": TWO}).status_code == 200


def test_an_unknown_model_is_refused_with_those_that_are_known(both: httpx.Client, client: OpenAI) -> None:
    refused = run(both, model="three")
    assert refused.status_code == 404
    assert error(refused)["message"] == "model: no live worker serves 'three'; known: one, two"
    assert error(refused)["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="known: one, two"):
        client.completions.create(model="three", prompt="x")
    assert "known: one, two" in error(both.get("/v1/models/three"))["message"]


def test_a_known_model_without_a_worker_lets_jobs_wait_and_nobody_else(
    both: httpx.Client, client: OpenAI, gateway_settings: Settings
) -> None:
    store = JobStore(gateway_settings)
    Registry(store.db, 60).refresh(WorkerInfo("x", "was", 2048, 1, pid=1, host="h", started_at=0.0))
    Registry(store.db, 60).leave("x")
    store.close()
    asked = {"prompt": "x", "model": "was", "priority": "bulk"}
    wait_until(lambda: both.post("/v1/jobs", json=asked).status_code == 202)
    with pytest.raises(openai.InternalServerError, match="no model worker for 'was' is alive") as refused:
        client.completions.create(model="was", prompt="x")
    assert (refused.value.status_code, refused.value.code) == (503, "no_worker")
    assert refused.value.response.headers["Retry-After"]
    samples = both.get("/metrics").text
    assert 'medusaq_model_queue_jobs{model="was",priority="bulk"} 1.0' in samples
    assert 'medusaq_queue_jobs{priority="bulk"} 1.0' in samples
    assert 'medusaq_model_workers{model="was"} 0.0' in samples
    assert f'medusaq_model_workers{{model="{ONE}"}} 1.0' in samples
    assert f'medusaq_model_queue_jobs{{model="{ONE}",priority="interactive"}} 0.0' in samples


def test_online_requests_wait_for_an_announced_model(both: httpx.Client, gateway_settings: Settings) -> None:
    store = JobStore(gateway_settings)
    Registry(store.db, 60).announce_models(["later"], 60)
    store.close()

    wait_until(lambda: "later" in {model["id"] for model in both.get("/v1/models").json()["data"]})
    with pytest.raises(httpx.ReadTimeout):
        both.post("/v1/completions", json={"model": "later", "prompt": "x"}, timeout=1)
    wait_until(lambda: newest(both)["model"] == "later")
    job = newest(both)
    assert (job["model"], job["started_at"]) == ("later", None)


def test_lines_of_a_batch_have_to_choose_too(both: httpx.Client) -> None:
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/jobs", "body": {"prompt": "x", **model}}
        for n, model in enumerate(({"model": ONE}, {}, {"model": TWO}))
    ]
    batch = _run_batch(both, lines)
    assert (batch["request_counts"]["completed"], batch["request_counts"]["failed"]) == (2, 1)
    [refused] = batch["errors"]["data"]
    assert (refused["code"], refused["param"], refused["line"]) == ("model_required", "model", 2)
    assert "name one of later, one, two" in refused["message"] or "name one of one, two" in refused["message"]


def test_a_gateway_is_ready_for_a_model_that_is_started_when_asked_for(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = fast_settings(redis_server)
    gateway, store = GatewayProcess(settings, tmp_path_factory.mktemp("gateway")), JobStore(settings)
    try:
        assert gateway.http.get("/readyz").status_code == 503
        Registry(store.db, 60).announce_models(["later"], 60)
        wait_until(lambda: gateway.http.get("/readyz").status_code == 200)
        [listed] = gateway.http.get("/v1/models").json()["data"]
        assert (listed["id"], listed["workers"], listed["workers_detail"]) == ("later", 0, [])
        assert gateway.http.get("/v1/models/later").json() == listed
        job = gateway.http.post("/v1/jobs", json={"prompt": "x"}).json()
        assert job["model"] == "later", "the only one there is"
    finally:
        gateway.stop()
        store.close()


def test_a_default_model_answers_what_names_none(
    redis_server: RedisServer, workers: Workers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = fast_settings(redis_server, default_model=TWO)
    gateway = GatewayProcess(settings, tmp_path_factory.mktemp("gateway"))
    try:
        workers.io(settings)
        workers.model(settings, env={"SCRIPTED_MODEL": ONE})
        http = gateway.http
        wait_until(lambda: http.get("/readyz").status_code == 200)
        refused = run(http)
        assert refused.status_code == 404
        said = "model: no live worker serves 'two' (from MEDUSAQ_DEFAULT_MODEL); known: one"
        assert error(refused)["message"] == said
        workers.model(settings, env={"SCRIPTED_MODEL": TWO})
        wait_until(lambda: run(http).status_code == 200)
        assert run(http).json()["model"] == TWO
        assert run(http, model=ONE).json()["model"] == ONE
        assert http.post("/v1/completions", json={"prompt": "x"}).json()["model"] == TWO
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
        batch = _run_batch(http, [line])
        assert (batch["model"], batch["request_counts"]["completed"]) == (TWO, 1)
    finally:
        gateway.stop()


def _run_batch(http: httpx.Client, lines: list[dict[str, object]]) -> dict[str, object] | dict[str, dict]:
    content = "".join(json.dumps(line) + "\n" for line in lines)
    form = {"file": ("x.jsonl", content.encode())}
    file_id = http.post("/v1/files", data={"purpose": "batch"}, files=form).json()["id"]
    asked = {"input_file_id": file_id, "endpoint": lines[0]["url"]}
    batch = http.post("/v1/batches", json=asked).json()
    wait_until(lambda: http.get(f"/v1/batches/{batch['id']}").json()["status"] == "completed")
    return dict(http.get(f"/v1/batches/{batch['id']}").json())


# The rule by itself


def worker(model: str) -> WorkerInfo:
    return WorkerInfo(model, model, 2048, 1, pid=1, host="h", started_at=0.0)


@pytest.mark.parametrize(
    ("view", "asked", "default", "expected"),
    [
        (View(), None, None, None),
        (View(), "a", None, "a"),
        (View([worker("a")]), None, None, None),
        (View([worker("a")]), "a", None, "a"),
        (View([worker("a"), worker("b")]), None, "b", "b"),
        (View((), frozenset({"a"})), None, None, "a"),
        (View([worker("a")], frozenset({"a"})), None, None, "a"),
        (View([worker("a")], frozenset(), frozenset({"a", "b"})), None, None, None),
        (View([worker("a")], frozenset(), frozenset({"a", "b"})), "b", None, "b"),
        (View([worker("a")], frozenset({"b"})), "b", None, "b"),
    ],
)
def test_routes(view: View, asked: str | None, default: str | None, expected: str | None) -> None:
    assert route(asked, default, view, online=False) == expected
