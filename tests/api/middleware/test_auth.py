"""API keys over HTTP: who is let in, and each limit from both sides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import httpx
import openai
import pytest

from tasks.base.settings import Settings
from tasks.records.api_key import ApiKey, Limits
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.api.forms import FILE, FORM, PURPOSE, form
from tests.support.servers import RedisServer, fast_settings
from tests.support.tuned import constants
from tests.support.workers import Workers, wait_until

pytestmark = pytest.mark.stack

JOB = {"prompt": "hi", "max_tokens": 10}
PUBLIC = ("/healthz", "/readyz", "/docs", "/docs/swagger-ui-bundle.js", "/openapi.json", "/metrics")


class Keys:
    """Makes keys for a gateway, and clients that send them."""

    def __init__(self, settings: Settings) -> None:
        self._store = JobStore(settings)
        self.made = KeyStore(self._store.db)
        self._clients: list[httpx.Client] = []

    def client(self, gateway: GatewayProcess, **limits: float) -> httpx.Client:
        return self.with_key(gateway, **limits)[0]

    def with_key(self, gateway: GatewayProcess, **limits: float) -> tuple[httpx.Client, ApiKey, str]:
        key, secret = self.made.create("test", Limits(**limits))  # type: ignore[arg-type]
        bearer = {"Authorization": f"Bearer {secret}"}
        self._clients.append(httpx.Client(base_url=gateway.url, headers=bearer, timeout=20))
        return self._clients[-1], key, secret

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._store.close()


@pytest.fixture
def keys(gateway_settings: Settings) -> Iterator[Keys]:
    """Once a test has used it, the module's gateway asks for keys: it alone is for that."""
    keys = Keys(gateway_settings)
    yield keys
    keys.close()


@pytest.fixture
def open_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server)


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts a gateway of the test's own."""
    started: list[GatewayProcess] = []

    def gateway_for(settings: Settings, env: Mapping[str, str] | None = None) -> GatewayProcess:
        started.append(GatewayProcess(settings, tmp_path_factory.mktemp("gateway"), env=env))
        return started[-1]

    yield gateway_for
    for process in started:
        process.stop()


def error(response: httpx.Response) -> tuple[int, str, str]:
    """Status, type and code, of an answer in the one shape of errors."""
    told = response.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return response.status_code, told["type"], told["code"]


def test_the_first_key_closes_the_gateway_and_revoking_it_does_not_open_it(
    open_settings: Settings, start: Callable[[Settings], GatewayProcess]
) -> None:
    own = start(open_settings)
    http = own.http
    assert http.get("/v1/jobs").status_code == 200
    keys = Keys(open_settings)
    client, key, _ = keys.with_key(own)
    wait_until(lambda: http.get("/v1/jobs").status_code == 401)
    assert client.get("/v1/jobs").status_code == 200
    keys.made.revoke(key.id)
    assert error(client.get("/v1/jobs")) == (401, "authentication_error", "invalid_api_key")
    assert http.get("/v1/jobs").status_code == 401
    keys.close()


def test_the_first_key_owns_what_it_makes_from_the_start(
    open_settings: Settings, start: Callable[[Settings], GatewayProcess]
) -> None:
    own = start(open_settings)
    assert own.http.get("/v1/jobs").status_code == 200, "found open, and remembered for a second"
    keys = Keys(open_settings)
    client = keys.client(own)
    job = client.post("/v1/jobs", json=JOB).json()["id"]
    wait_until(lambda: own.http.get("/v1/jobs").status_code == 401)
    assert client.get(f"/v1/jobs/{job}").status_code == 200
    keys.close()


@pytest.mark.parametrize(
    ("host", "allow_open", "never", "revoked"),
    [
        ("127.0.0.1", False, 200, 401),
        ("127.0.0.1", True, 200, 200),
        ("0.0.0.0", True, 200, 200),
    ],
)
def test_what_is_open_without_keys(
    open_settings: Settings,
    start: Callable[[Settings], GatewayProcess],
    host: str,
    allow_open: bool,
    never: int,
    revoked: int,
) -> None:
    chosen = open_settings.model_copy(update={"host": host, "allow_open": allow_open})
    own = start(chosen)
    assert own.http.get("/v1/jobs").status_code == never
    keys = Keys(chosen)
    _, key, _ = keys.with_key(own)
    wait_until(lambda: own.http.get("/v1/jobs").status_code == 401)
    keys.made.revoke(key.id)
    assert own.http.get("/v1/jobs").status_code == revoked
    keys.close()


def test_metrics_beyond_this_machine_are_for_keys(
    open_settings: Settings, start: Callable[[Settings], GatewayProcess]
) -> None:
    keys = Keys(open_settings)
    keys.made.create("first", Limits())  # else it would not start
    published = open_settings.model_copy(update={"publish_address": "10.0.0.5"})
    own = start(published)
    assert own.http.get("/metrics").status_code == 401
    assert keys.client(own).get("/metrics").status_code == 200
    keys.close()


def test_nobody_is_let_in_without_a_good_key(gateway: GatewayProcess, keys: Keys) -> None:
    client, _, secret = keys.with_key(gateway)
    wait_until(lambda: gateway.http.get("/v1/jobs").status_code == 401)
    missing = gateway.http.get("/v1/jobs")
    assert error(missing) == (401, "authentication_error", "missing_api_key")
    assert missing.headers["www-authenticate"] == "Bearer"
    for header in (f"Bearer {secret}x", f"Bearer {secret[:-1]}", "Bearer mq_", "Bearer \xff"):
        wrong = gateway.http.get("/v1/jobs", headers={"Authorization": header.encode("latin-1")})
        assert error(wrong) == (401, "authentication_error", "invalid_api_key"), header
        assert secret[:-1] not in wrong.text
    for header in (f"Basic {secret}", secret, "Bearer", ""):
        assert gateway.http.get("/v1/jobs", headers={"Authorization": header}).status_code == 401
    assert client.get("/v1/jobs", headers={"Authorization": f"bearer  {secret}"}).status_code == 200
    assert gateway.http.post("/v1/jobs", json=JOB).status_code == 401
    assert gateway.http.get("/nowhere").status_code == 401, "what is there is told to nobody either"
    for path in PUBLIC:
        assert gateway.http.get(path).status_code != 401, path


def test_a_revoked_key_is_refused_at_once(gateway: GatewayProcess, keys: Keys) -> None:
    client, key, _ = keys.with_key(gateway)
    assert client.get("/v1/jobs").status_code == 200
    keys.made.revoke(key.id)
    assert client.get("/v1/jobs").status_code == 401


def test_openais_client_sends_its_key(gateway: GatewayProcess, keys: Keys) -> None:
    _, _, secret = keys.with_key(gateway, requests_per_minute=2)
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=0) as client:
        assert client.models.list().data == []
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_x")
        with pytest.raises(openai.RateLimitError) as limited:
            client.models.list()
        assert limited.value.code == "rate_limit_exceeded"
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="mq_wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            client.models.list()
        assert refused.value.code == "invalid_api_key"


def test_requests_a_minute(gateway: GatewayProcess, keys: Keys) -> None:
    client, other = keys.client(gateway, requests_per_minute=3), keys.client(gateway)
    for left in (2, 1, 0):
        passed = client.get("/v1/jobs")
        assert passed.status_code == 200
        assert passed.headers["x-ratelimit-limit-requests"] == "3"
        assert passed.headers["x-ratelimit-remaining-requests"] == str(left)
        assert re.fullmatch(r"(1m)?\d+s", passed.headers["x-ratelimit-reset-requests"])
    refused = client.post("/v1/jobs", json=JOB)
    assert error(refused) == (429, "requests", "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert client.get("/healthz").status_code == 200
    free = other.get("/v1/jobs")
    assert free.status_code == 200
    assert not [name for name in free.headers if name.startswith("x-ratelimit")]


def test_tokens_a_day(gateway: GatewayProcess, keys: Keys) -> None:
    client = keys.client(gateway, tokens_per_day=20)
    assert client.post("/v1/jobs", json=JOB).status_code == 202
    over = client.post("/v1/jobs", json={**JOB, "max_tokens": 11})
    assert error(over) == (429, "insufficient_quota", "insufficient_quota")
    assert over.headers["x-should-retry"] == "false"
    assert 1 <= int(over.headers["retry-after"]) <= 24 * 3600
    last = client.post("/v1/jobs", json=JOB)
    assert last.status_code == 202
    assert last.headers["x-ratelimit-limit-tokens"] == "20"
    assert last.headers["x-ratelimit-remaining-tokens"] == "10", "as it was when the request came"
    assert re.fullmatch(r"(\d+h)?(\d+m)?\d+s", last.headers["x-ratelimit-reset-tokens"])
    assert client.get("/v1/jobs").headers["x-ratelimit-remaining-tokens"] == "0"
    file = client.post("/v1/files", content=form(PURPOSE, FILE), headers=FORM).json()["id"]
    batch = {"input_file_id": file, "endpoint": "/v1/jobs"}
    assert error(client.post("/v1/batches", json=batch))[2] == "insufficient_quota"
    client.post(f"/v1/jobs/{last.json()['id']}/cancel")
    assert client.get("/v1/jobs").headers["x-ratelimit-remaining-tokens"] == "10"
    assert client.post("/v1/batches", json=batch).status_code == 200


def test_jobs_at_the_same_time(gateway: GatewayProcess, keys: Keys) -> None:
    client = keys.client(gateway, max_jobs=2)
    ids = [client.post("/v1/jobs", json=JOB).json()["id"] for _ in range(2)]
    refused = client.post("/v1/jobs", json=JOB)
    assert error(refused) == (429, "requests", "queue_full")
    assert refused.headers["retry-after"] == "2"
    client.post(f"/v1/jobs/{ids[0]}/cancel")
    assert client.post("/v1/jobs", json=JOB).status_code == 202


def test_batches_at_the_same_time(gateway: GatewayProcess, keys: Keys) -> None:
    client = keys.client(gateway, max_batches=1)
    file = client.post("/v1/files", content=form(PURPOSE, FILE), headers=FORM).json()["id"]
    batch = {"input_file_id": file, "endpoint": "/v1/jobs"}
    assert client.post("/v1/batches", json=batch).status_code == 200
    refused = client.post("/v1/batches", json=batch)
    assert error(refused) == (429, "requests", "queue_full")
    assert refused.headers["retry-after"]
    assert "x-should-retry" not in refused.headers


def test_an_online_request_has_all_its_choices_or_none(
    open_settings: Settings,
    workers: Workers,
    start: Callable[[Settings], GatewayProcess],
) -> None:
    workers.model(open_settings)
    own = start(open_settings)
    keys = Keys(open_settings)
    client, key, _ = keys.with_key(own, max_jobs=2, tokens_per_day=1000)
    wait_until(lambda: own.http.get("/v1/jobs").status_code == 401)
    wait_until(lambda: client.get("/v1/models").json()["data"])
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
    refused = client.post("/v1/chat/completions", json={**chat, "n": 3})
    assert error(refused)[2] == "queue_full"
    assert all(job["status"] == "cancelled" for job in client.get("/v1/jobs").json()["data"])
    fits = client.post("/v1/chat/completions", json={**chat, "n": 2})
    assert len(fits.json()["choices"]) == 2
    assert client.post("/generate/normal", json={"prompt": "hi", "max_length": 5}).status_code == 200
    listed = client.get("/v1/jobs", params={"status": "succeeded"}).json()["data"]
    spent = next(found.tokens_today for found in keys.made.list() if found.id == key.id)
    assert len(listed) == 3
    assert spent == sum(job["result"]["usage"]["total_tokens"] for job in listed)
    keys.close()


def test_requests_open_at_once(open_settings: Settings, start: Callable[..., GatewayProcess]) -> None:
    own = start(open_settings, env=constants({"api.requests.open_requests.MOST_OPEN": 2}))
    keys = Keys(open_settings)
    client, other = keys.client(own), keys.client(own)
    job = client.post("/v1/jobs", json=JOB).json()["id"]
    with client.stream("GET", f"/v1/jobs/{job}/events") as first:
        assert first.status_code == 200
        with client.stream("GET", f"/v1/jobs/{job}/events") as second:
            assert second.status_code == 200
            refused = client.get("/v1/jobs")
            assert error(refused) == (429, "requests", "rate_limit_exceeded")
            assert refused.headers["retry-after"] == "2"
            assert other.get("/v1/jobs").status_code == 200
        wait_until(lambda: client.get("/v1/jobs").status_code == 200)
    keys.close()


def test_queued_jobs_of_all(redis_server: RedisServer, start: Callable[[Settings], GatewayProcess]) -> None:
    narrow = fast_settings(redis_server, max_queued=2)
    own = start(narrow)
    http = own.http
    assert [http.post("/v1/jobs", json=JOB).status_code for _ in range(2)] == [202, 202]
    refused = http.post("/v1/jobs", json=JOB)
    assert error(refused) == (429, "requests", "queue_full")
    assert refused.headers["retry-after"]


def test_an_idempotency_key_is_its_owners(gateway: GatewayProcess, keys: Keys) -> None:
    headers = {"Idempotency-Key": "k"}
    one, two = keys.client(gateway), keys.client(gateway)
    for path, request in {
        "/v1/jobs": {"json": JOB},
        "/v1/files": {"content": form(PURPOSE, FILE)},
    }.items():
        more = headers | (FORM if path == "/v1/files" else {})
        mine = one.post(path, headers=more, **request).json()["id"]  # type: ignore[arg-type]
        assert one.post(path, headers=more, **request).json()["id"] == mine  # type: ignore[arg-type]
        assert two.post(path, headers=more, **request).json()["id"] != mine  # type: ignore[arg-type]
