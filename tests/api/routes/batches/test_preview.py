"""The first rows of an uploaded table, and the requests that a batch would send of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.routes.batches.batch_client import end
from tests.api.routes.batches.table_client import CSV, SCHEMA, TEMPLATE, create, made, upload

pytestmark = pytest.mark.stack


def preview(http: httpx.Client, file_id: str, **fields: Any) -> httpx.Response:
    return http.post("/v1/batches/preview", json={"input_file_id": file_id, **fields})


@pytest.mark.parametrize("name", ["r.csv", "r.tsv", "r.jsonl", "r.parquet", "r.xlsx"])
def test_rows_of_any_kind_of_table(
    client: openai.OpenAI, http: httpx.Client, name: str, tmp_path: Path
) -> None:
    shown = preview(http, upload(client, made(name, tmp_path), name), rows=2, count=True).json()
    assert (shown["object"], shown["columns"]) == ("batch.preview", ["product", "review", "stars"])
    assert [row[:2] for row in shown["rows"]] == [["lamp", "good, bright"], ["cup", "x fail=boom"]]
    assert shown["rows"][0][2] in (5, "5")
    assert (shown["row_count"], shown["requests"]) == (3, [])
    assert shown["description"]


def test_the_requests_are_those_of_the_batch(client: openai.OpenAI, http: httpx.Client) -> None:
    fields = {
        "template": TEMPLATE,
        "system": "You sell a {{ product }}.",
        "schema": SCHEMA,
        "id_column": "product",
        "body": {"max_tokens": 5},
    }
    shown = preview(http, upload(client, CSV), rows=1, **fields).json()
    [request] = shown["requests"]
    assert (request["custom_id"], request["error"], shown["row_count"]) == ("lamp", None, None)
    assert request["body"]["max_tokens"] == 5
    assert [message["content"] for message in request["body"]["messages"]] == [
        "You sell a lamp.",
        "lamp: good, bright",
    ]
    assert http.post("/v1/chat/completions", json=request["body"]).status_code == 200
    done = end(client, create(client, **fields))
    [first, *_] = [json.loads(line) for line in http.get(f"/v1/batches/{done.id}/output").text.splitlines()]
    assert first["custom_id"] == "lamp"


def test_a_row_whose_template_fails_is_shown_with_its_error(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    file = upload(client, b'[{"a": 1}, {"a": "b"}, {"a": 3}]', "r.json")
    shown = preview(http, file, template="{{ a + 1 }}").json()
    assert [request["body"] is None for request in shown["requests"]] == [False, True, False]
    assert shown["requests"][1]["error"]["code"] == "template_failed"


def test_long_values_are_cut(client: openai.OpenAI, http: httpx.Client) -> None:
    shown = preview(http, upload(client, "a\n" + "x" * 1000 + "\n")).json()
    assert len(shown["rows"][0][0]) == 500


@pytest.mark.parametrize(
    ("content", "name", "fields", "param", "message"),
    [
        ("a,b\n1\n", "r.csv", {}, "input_file_id", "row 1 (line 2) has 1 value"),
        (CSV, "r.csv", {"template": "{{ produkt }}"}, "input_file_id", "did you mean 'product'"),
        (CSV, "r.csv", {"template": "{{ product"}, "template", "the template"),
        (CSV, "r.bin", {}, "input_file_id", "none of the endings"),
        (CSV, "r.csv", {"system": "x"}, "system", "goes with a template"),
        (CSV, "r.csv", {"rows": 0}, "rows", "greater than or equal to 1"),
        ("a\n", "r.csv", {}, "input_file_id", "the table holds no row"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    client: openai.OpenAI,
    http: httpx.Client,
    content: str,
    name: str,
    fields: dict[str, Any],
    param: str,
    message: str,
) -> None:
    answer = preview(http, upload(client, content, name), **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert message in answer.json()["error"]["message"]


def test_reading_all_rows_finds_a_torn_one(client: openai.OpenAI, http: httpx.Client) -> None:
    file = upload(client, "a,b\n" + "1,2\n" * 10 + "1\n")
    assert preview(http, file).status_code == 200
    assert "row 11" in preview(http, file, count=True).json()["error"]["message"]


def test_an_unknown_file(http: httpx.Client) -> None:
    answer = preview(http, "file_" + "0" * 32)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "file_not_found")
