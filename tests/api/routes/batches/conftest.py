"""A gateway with files of its own, and behind it an io worker and a scripted model worker."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tasks.base.settings import Settings
from tests.api.conftest import GatewayProcess
from tests.support.servers import RedisServer, fast_settings
from tests.support.workers import Workers


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return fast_settings(redis_server, files=str(tmp_path_factory.mktemp("files")))


@pytest.fixture(scope="module")
def system(model_worker: Workers, gateway_settings: Settings, gateway: GatewayProcess) -> GatewayProcess:
    model_worker.io(gateway_settings)
    return gateway


@pytest.fixture
def client(system: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{system.http.base_url}/v1", api_key="k", max_retries=0) as client:
        yield client
