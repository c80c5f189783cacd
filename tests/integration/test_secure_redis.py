"""The whole system on a Redis with a user, a password and TLS, and where its secrets can be read: nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import openai
import pytest
import redis
import trustme
from pydantic import SecretStr
from standardwebhooks.webhooks import Webhook as Verifier

from tasks.base.errors import StoreUnavailable
from tasks.records.api_key import Limits
from tasks.records.webhook import secret_key
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.integration.secured import (
    FLOWER_PASSWORD,
    PASSWORD,
    S3_SECRET,
    USER,
    WEBHOOK_SECRETS,
    Secured,
    System,
)
from tests.support.peers.receivers import Received, receiving
from tests.support.peers.tls import TlsProxy, ca_file
from tests.support.servers import fast_settings, free_port
from tests.support.workers import wait_until

pytestmark = pytest.mark.stack


def bearer(system: System) -> dict[str, str]:
    return {"Authorization": f"Bearer {system.key}"}


def secrets_of(signing: str) -> tuple[str, ...]:
    """A secret of webhooks as it may be read by accident."""
    return signing.removeprefix("whsec_"), secret_key(signing).hex(), repr(secret_key(signing))


def tell(system: System) -> Received:
    """The webhook of a job."""
    with receiving() as receiver:
        job = {"prompt": "hello there", "webhook": {"url": receiver.url}}
        assert httpx.post(f"{system.url}/v1/jobs", json=job, headers=bearer(system)).status_code == 202
        [got] = receiver.wait_for(1, 20)
    return got


def test_everything_works(system: System) -> None:
    with openai.OpenAI(base_url=f"{system.url}/v1", api_key=system.key, max_retries=0) as client:
        asked = {"model": "scripted", "messages": [{"role": "user", "content": "hello there"}]}
        answer = client.chat.completions.create(**asked)  # type: ignore[call-overload]
        assert answer.choices[0].message.content == "hello there"
        stream = client.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
        assert "".join(part.choices[0].delta.content or "" for part in stream) == "hello there"
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": asked}
        file = client.files.create(file=("a.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", report=system.logs)
    got = tell(system)
    for signing in WEBHOOK_SECRETS:
        Verifier(signing).verify(got.body, got.headers)
    flower = httpx.Client(base_url=system.flower, auth=("me", FLOWER_PASSWORD))
    wait_until(lambda: len(flower.get("/api/workers", params={"refresh": "1"}).json()) == 2)
    assert flower.get("/api/tasks").json(), "it hears of the jobs"
    queues = flower.get("/api/queues/length").json()["active_queues"]
    assert {queue["name"] for queue in queues} >= {"medusaq.interactive", "medusaq.bulk"}
    flower.close()


def test_no_secret_can_be_read_anywhere(system: System) -> None:
    test_everything_works(system)
    told = {"logs": system.logs()}
    with httpx.Client(auth=("me", FLOWER_PASSWORD), follow_redirects=True) as flower:
        workers = list(flower.get(f"{system.flower}/api/workers", params={"refresh": "1"}).json())
        pages = ["/workers", "/tasks", "/broker", "/metrics", "/api/workers", "/api/tasks"]
        for page in [*pages, *(f"/worker/{name}" for name in workers)]:
            answer = flower.get(system.flower + page)
            assert answer.status_code == 200, page
            told[f"Flower's {page}"] = answer.text
    shown = ["/metrics", "/v1/models", "/v1/jobs", "/v1/batches", "/v1/webhooks/deliveries", "/openapi.json"]
    for path in [*shown, "/v1/webhooks/secret", "/nowhere"]:
        told[path] = httpx.get(system.url + path, headers=bearer(system)).text
    for name, process in system.processes.items():
        told[f"command line of {name}"] = Path(f"/proc/{process.pid}/cmdline").read_text()
    secrets = (
        PASSWORD,
        FLOWER_PASSWORD,
        S3_SECRET,
        system.key,
        system.key.removeprefix("mq_"),
        *(text for signing in WEBHOOK_SECRETS for text in secrets_of(signing)),
    )
    assert system.settings.files.startswith("s3://"), "which the secret of S3 is for"
    for where, text in told.items():
        assert text, where
        for secret in secrets:
            assert secret not in text, f"{secret} is in {where}"


def test_an_owner_s_secret_of_webhooks_is_in_no_log(system: System, tmp_path: Path) -> None:
    """Where the settings give none, the gateway makes one for each key."""
    own = free_port()
    settings = system.settings.model_copy(
        update={"webhook_secrets": SecretStr(""), "key_prefix": f"t{own}:", "port": own}
    )
    store = JobStore(settings)
    _, key = KeyStore(store.db).create("test", Limits())
    store.close()
    other = System(settings, key, tmp_path)
    for name in ("gateway", "worker", "io"):
        other.start(name)
    try:
        wait_until(lambda: _status(other.url) == 200, 60, report=other.logs)
        got = tell(other)
        signing = httpx.get(f"{other.url}/v1/webhooks/secret", headers=bearer(other)).json()["current"]
        Verifier(signing).verify(got.body, got.headers)
    finally:
        other.stop()
    for secret in secrets_of(signing):
        assert secret not in other.logs()


def test_a_wrong_password_is_said_without_it(secured: Secured, tmp_path: Path) -> None:
    wrong = secured.named("localhost", "Wrong-pass.word", ssl_ca_certs=secured.ca)
    settings = fast_settings(secured.redis, redis_url=wrong, port=free_port(), log_level="DEBUG")
    system = System(settings, "", tmp_path)
    for name in ("gateway", "io"):
        system.start(name)
    try:
        wait_until(lambda: _status(system.url) == 503, report=system.logs)
        told = httpx.get(f"{system.url}/v1/jobs")
        assert (told.status_code, told.json()["error"]["code"]) == (503, "store_unavailable")
        wait_until(lambda: system.logs().count("does not answer") == 2, report=system.logs)
    finally:
        system.stop()
    assert "Wrong-pass.word" not in system.logs() + told.text
    assert f"rediss://{USER}:***@localhost:" in system.logs()


def _status(url: str) -> int:
    try:
        return httpx.get(f"{url}/readyz").status_code
    except httpx.TransportError:
        return 0


def ping(secured: Secured, url: str) -> None:
    """Raises StoreUnavailable."""
    store = JobStore(fast_settings(secured.redis, redis_url=url))
    try:
        KeyStore(store.db).status()
    finally:
        store.close()


def test_the_certificate_of_redis_must_be_good(secured: Secured, tmp_path: Path) -> None:
    ping(secured, secured.url)
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        ping(secured, secured.named("localhost"))  # the system does not know who signed it
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        ping(secured, secured.named("localhost", ssl_ca_certs=ca_file(trustme.CA(), tmp_path)))
    with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        ping(secured, secured.named("127.0.0.1", ssl_ca_certs=secured.ca))
    ping(secured, secured.named("127.0.0.1", ssl_cert_reqs="none"))


def test_a_redis_that_asks_for_our_certificate(secured: Secured, tmp_path: Path) -> None:
    server_ca, client_ca = trustme.CA(), trustme.CA()
    proxy = TlsProxy(secured.redis.port, server_ca, "localhost", client_ca=client_ca)
    own = client_ca.issue_cert("medusaq.example")
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    ca = ca_file(server_ca, tmp_path)
    url = f"rediss://{USER}:{PASSWORD}@localhost:{proxy.port}/0?ssl_ca_certs={ca}"
    with pytest.raises(StoreUnavailable):
        ping(secured, url)
    ping(secured, f"{url}&ssl_certfile={tmp_path}/own.pem&ssl_keyfile={tmp_path}/own.pem")
    proxy.stop()


def test_nobody_gets_in_without_tls_and_the_password(secured: Secured) -> None:
    with pytest.raises(StoreUnavailable):
        ping(secured, secured.named("localhost").replace("rediss://", "redis://"))
    with pytest.raises(StoreUnavailable, match=r"(?i)invalid username-password pair"):
        ping(secured, secured.named("localhost", "wrong", ssl_ca_certs=secured.ca))
    with pytest.raises(redis.AuthenticationError), redis.Redis(port=secured.redis.port) as client:
        client.ping()
