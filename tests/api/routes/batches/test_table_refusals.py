"""Requests for batches made of tables that are refused before anything runs: each refusal names the field."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.api.conftest import GatewayProcess
from tests.api.routes.batches.table_client import SCHEMA, create

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def system(gateway: GatewayProcess) -> GatewayProcess:
    """No worker is needed."""
    return gateway


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"format": "csv", "usage": "yes"}, "usage", "must be true or false"),
        ({"format": "xlsx", "safe_csv": "true"}, "safe_csv", "is for csv and tsv"),
        ({"usage": "true"}, "usage", "goes with a format"),
        ({"safe_csv": "true"}, "safe_csv", "goes with a format"),
    ],
)
def test_what_is_asked_for_must_make_sense(
    http: httpx.Client, given: dict[str, str], param: str, message: str
) -> None:
    refused = http.get(f"/v1/batches/batch_{'0' * 32}/output", params=given)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert message in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"template": "{{ a"}, "template", "line 1"),
        ({"template": "{{ a.b() }}"}, "template", "calls cannot be used here"),
        ({"template": "{% if %}"}, "template", "line 1"),
        ({"template": 5}, "template", "valid string"),
        ({"template": ""}, "template", "at least 1 character"),
        ({"system": "{% for %}"}, "system", "line 1"),
        ({"schema": {"type": "objec"}}, "schema", "no JSON Schema"),
        ({"schema": {"type": "string"}}, "schema", "must be the schema of an object"),
        ({"schema": []}, "schema", "should be an object"),
        ({"schema": SCHEMA | {"title": "x" * 40_000}}, "schema", "more than 32,768 bytes"),
        ({"columns": "a"}, "columns", "should be a valid array"),
        ({"columns": ["a", "a"]}, "columns", "'a' twice"),
        ({"id_column": ["a"]}, "id_column", "valid string"),
        ({"body": {"temperature": "x"}}, "body.temperature", "valid number"),
        ({"body": {"messages": []}}, "body.messages", "made by the template"),
        ({"body": {"response_format": {"type": "text"}}, "schema": SCHEMA}, "body.response_format", "schema"),
        ({"body": {"n": 2}}, "body.n", "only 1 answer"),
        ({"body": {"stop": ["x" * 20_000]}}, "body", "more than 16,384 bytes"),
        ({"endpoint": "/v1/completions"}, "endpoint", "for a table"),
        ({"template": None, "schema": SCHEMA}, "schema", "goes with a template"),
        ({"template": None, "body": {}}, "body", "goes with a template"),
    ],
)
def test_a_request_that_is_wrong_names_the_field(
    client: openai.OpenAI, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, **fields)
    assert refused.value.param == param
    assert message in str(refused.value)


def test_a_file_must_have_the_name_of_a_table(client: openai.OpenAI) -> None:
    for name, message in (("r.doc", "endings of tables"), ("r.parquet.gz", "compressed in itself")):
        with pytest.raises(openai.BadRequestError, match=message) as refused:
            create(client, name=name)
        assert refused.value.param == "input_file_id"


@pytest.mark.parametrize("name", ["r.csv", "r.CSV.gz", "r.tsv", "r.parquet.gz", "r.xlsx"])
def test_the_file_of_a_table_needs_a_template(client: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, name=name, template=None)
    assert refused.value.param == "template"
    assert f"template: is required: '{name}' is a table by its name" in str(refused.value)
