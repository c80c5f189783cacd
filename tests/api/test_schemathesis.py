"""The OpenAPI document against the gateway that it describes: what schemathesis finds, on a real connection.

Each endpoint gets a few dozen requests, good ones and bad ones, the same in every run. The checks are all
that schemathesis has but for those in NOT_CHECKED and EXPLAINED, each with its reason.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

from api.app import create_app
from tasks.base.settings import Settings
from tasks.records.api_key import Limits
from tasks.store.api_keys import KeyStore
from tasks.store.jobs import JobStore
from tests.api.conftest import GatewayProcess
from tests.support.servers import RedisServer, fast_settings
from tests.support.tuned import constants
from tests.support.workers import Workers

pytestmark = pytest.mark.stack

EXAMPLES = 25
LONGEST_WAIT_S = 30  # what the examples of the document ask for
# Headers that are no more than wishes (Prefer, by RFC 7240) are ignored where they are not understood.
NOT_CHECKED = ("missing_required_header",)
# Where a request that the document calls good gets a 400 all the same: operation, field and message.
EXPLAINED = (
    # A document cannot say what there is in this gateway: an id that a page begins behind, an uploaded file.
    ("GET .*", "after", "no (job|batch|file|delivery) with id"),
    ("POST /v1/batches(/preview)?", "input_file_id", "no file with id"),
    # Nor whether that file, or a batch, is a table, and what a template and a schema of answers are.
    ("GET /v1/batches/{batch_id}/output", "format", "made of a table"),
    ("POST /v1/batches(/preview)?", "template|system", "the template"),
    ("POST /v1/batches(/preview)?", "schema", "no JSON Schema|must be the schema of an object|has more than"),
    ("POST /v1/batches(/preview)?", r"body(\..*)?", ".*"),
    ("POST /v1/batches(/preview)?", "system|schema|columns|id_column|body", "goes with a template"),
    # Nor that one parameter of a query excludes or needs another.
    ("GET /v1/batches/{batch_id}/output", "usage|safe_csv", "goes with a format|is for csv and tsv"),
    ("GET /v1/webhooks/deliveries", "job_id|batch_id", "only one job_id or batch_id is allowed"),
    # JSON Schema counts 5.0 among the integers; a field of whole numbers takes 5 alone.
    ("POST .*", ".*", "input should be a valid integer"),
    # An item of a response's input may be of many kinds, of which the document tells none.
    ("POST /v1/responses", r"input(\..*)?", ".*"),
    # Of OpenAI's many fields the document names those alone that are needed; what nobody knows is refused.
    ("POST /v1/((chat/)?completions|responses)", ".*", "there is no such field"),
    # It could say what goes with what in a body, in forms that generators of clients do not understand.
    ("POST .*", "prompt", "give exactly one of prompt and messages"),
    ("POST .*", r"raw|tools", "raw (needs a prompt|text has no place for tools)"),
    ("POST .*", r"messages\.\d+\.(content|tool_calls|tool_call_id)", "missing|only an assistant|role tool"),
    ("POST .*", r"response_format\.json_schema", "goes with the type json_schema"),
    # Nor the time, the context of the models that are served, and what leads to a public address.
    ("POST .*", "deadline", "must be in the future"),
    ("POST .*", "max_tokens|max_length", "exceeds the model.s context"),
    ("POST .*", r"webhook\.url", "must look like|no such port|does not lead to public|is no name of a host"),
)


@pytest.fixture(scope="module")
def gateway_settings(redis_server: RedisServer) -> Settings:
    return fast_settings(redis_server)


@pytest.fixture(scope="module")
def gateway_env() -> dict[str, str]:
    return constants({"api.requests.parsing.MOST_WAIT_S": LONGEST_WAIT_S})


@pytest.fixture(scope="module")
def served(
    gateway: GatewayProcess, gateway_settings: Settings, worker_with_heads: Workers
) -> Iterator[dict[str, object]]:
    """Where it is, and a key to it."""
    assert worker_with_heads.all
    store = JobStore(gateway_settings)
    _, secret = KeyStore(store.db).create("schemathesis", Limits())
    store.close()
    yield {"base_url": gateway.url, "headers": {"Authorization": f"Bearer {secret}"}}
    assert "Traceback" not in gateway.log.read_text()


def _schema() -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_dict(create_app(Settings(_env_file=None)).openapi())  # type: ignore[call-arg]


schema = _schema()


def _explained(case: schemathesis.Case[Any], response: schemathesis.Response) -> bool:
    """Whether a request is refused that the document calls good, for one of the reasons in EXPLAINED."""
    if response.status_code != 400:
        return False
    told = response.json()["error"]
    return any(
        re.fullmatch(operation, case.operation.label)
        and re.fullmatch(param, told["param"] or "")
        and re.search(message, told["message"])
        for operation, param, message in EXPLAINED
    )


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_the_gateway_is_what_its_document_says(
    case: schemathesis.Case[Any], served: dict[str, object]
) -> None:
    response = case.call(**served)  # type: ignore[arg-type]
    not_checked = list(NOT_CHECKED)
    if _explained(case, response):
        not_checked.append("positive_data_acceptance")
    if "][" in urllib.parse.unquote(str(response.request.url)):
        # metadata[a][b]=c is no object within an object: metadata may have a key "a][b".
        not_checked.append("negative_data_rejection")
    excluded: Any = CHECKS.get_by_names(not_checked)
    case.validate_response(response, excluded_checks=excluded)
