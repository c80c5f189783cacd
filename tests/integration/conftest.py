"""The whole system on a Redis that wants a user, a password and TLS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trustme
from pydantic import SecretStr

from tasks.records.api_key import Limits
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.integration.secured import (
    FLOWER_PASSWORD,
    PASSWORD,
    SERVICES,
    USER,
    WEBHOOK_SECRETS,
    Secured,
    System,
)
from tests.support.peers.s3 import S3Server
from tests.support.peers.tls import TlsProxy, ca_file
from tests.support.servers import RedisServer, fast_settings, free_port
from tests.support.workers import SCRIPTED, wait_until


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, ca = tmp_path_factory.mktemp("secured"), trustme.CA()
    server = RedisServer(folder / "redis", USER, PASSWORD)
    server.start()
    proxy = TlsProxy(server.port, ca, "localhost")
    yield Secured(server, proxy, ca_file(ca, folder))
    proxy.stop()
    server.stop()


@pytest.fixture(scope="session")
def system(
    secured: Secured, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    settings = fast_settings(
        secured.redis,
        redis_url=secured.url,
        port=free_port(),
        flower_port=free_port(),
        flower_basic_auth=SecretStr(f"me:{FLOWER_PASSWORD}"),
        engine_factory=SCRIPTED,
        log_level="DEBUG",
        webhook_allow=["127.0.0.1/32"],
        webhook_secrets=SecretStr(" ".join(WEBHOOK_SECRETS)),
        files=f"s3://{s3_server.new_bucket()}/files",
    )
    store = JobStore(settings)
    _, key = KeyStore(store.db).create("test", Limits())
    store.close()
    system = System(settings, key, tmp_path_factory.mktemp("logs"))
    for name in SERVICES:
        system.start(name)
    try:
        wait_until(lambda: system.ready, 60, report=system.logs)
        yield system
    finally:
        system.stop()
