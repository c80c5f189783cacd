"""The OpenAPI document against the gateway that it describes: what schemathesis finds, on a real connection.

Each endpoint gets a few dozen requests, good ones and bad ones, the same in every run. The checks are all
that schemathesis has but for those in NOT_CHECKED, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

from api.app import create_app
from tasks.key import Limits
from tasks.keys import KeyStore
from tasks.settings import Settings
from tasks.store import JobStore
from tests.api.conftest import GatewayProcess
from tests.servers import RedisServer, fast_settings
from tests.workers import Workers

pytestmark = pytest.mark.stack

EXAMPLES = 25
NOT_CHECKED = (
    # JSON Schema cannot say that just one of two fields is needed, that a deadline lies ahead, that a file of
    # this id exists, or that a model has a context of so many tokens: such requests get their 400.
    "positive_data_acceptance",
    # Headers that are no more than wishes (Prefer, by RFC 7240) are ignored where they are not understood.
    "missing_required_header",
)


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server, max_wait_s=1)


@pytest.fixture(scope="module")
def served(
    gateway: GatewayProcess, gateway_settings: Settings, model_worker: Workers
) -> Iterator[dict[str, object]]:
    """Where it is, and a key to it."""
    assert model_worker.all
    store = JobStore(gateway_settings)
    _, secret = KeyStore(store).create("schemathesis", Limits())
    store.close()
    yield {"base_url": gateway.url, "headers": {"Authorization": f"Bearer {secret}"}}
    assert "Traceback" not in gateway.log.read_text()


def _schema() -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_dict(create_app(Settings(_env_file=None)).openapi())  # type: ignore[call-arg]


schema = _schema()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_the_gateway_is_what_its_document_says(case: schemathesis.Case, served: dict[str, object]) -> None:
    excluded = CHECKS.get_by_names(list(NOT_CHECKED))
    case.call_and_validate(excluded_checks=excluded, **served)  # type: ignore[arg-type]
