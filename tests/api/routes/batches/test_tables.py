"""Batches made of tables through the official client: a table goes in, and comes out with its answers."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import duckdb
import httpx
import openai
import openpyxl
import pytest
from openai.types import Batch

from api.requests.table_downloads import MOST_TABLES
from api.routes.batch_results import MEDIA_TYPES, Format
from tasks.records.batch import ENDED
from tests.api.conftest import GatewayProcess
from tests.api.routes.batches.batch_client import end
from tests.api.routes.batches.table_client import CHAT, CSV, SCHEMA, TEMPLATE, create, made, upload, xlsx
from tests.support.workers import wait_until
from tests.tasks.batches.test_table_batches import children

pytestmark = pytest.mark.stack

# Answers are prompts again.
ANSWERS = 'word\n"{""mood"": ""good"", ""stars"": 4, ""parts"": [1, 2]}"\nno object\n'


def output(http: httpx.Client, batch: Batch, kind: str = "csv", **others: str) -> httpx.Response:
    answer = http.get(f"/v1/batches/{batch.id}/output", params={"format": kind, **others})
    assert answer.status_code == 200, answer.text
    return answer


def rows(answer: httpx.Response) -> list[list[str]]:
    return list(csv.reader(io.StringIO(answer.text)))


@pytest.mark.parametrize("name", ["r.csv", "r.CSV.gz", "r.tsv", "r.jsonl", "r.json", "r.parquet", "r.xlsx"])
def test_a_table_of_any_kind_goes_in(
    client: openai.OpenAI, http: httpx.Client, name: str, tmp_path: Path
) -> None:
    done = end(client, create(client, made(name, tmp_path), name))
    assert done.status == "completed", done
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (2, 1)
    head, *body = rows(output(http, done))
    assert head == ["product", "review", "stars", "answer", "finish_reason", "error"]
    assert [row[:3] for row in body] == [
        ["lamp", "good, bright", "5"],
        ["cup", "x fail=boom", "2"],
        ["pen", "so-so", ""],
    ]
    assert [row[3] for row in body] == ["lamp: good, bright", "", "pen: so-so"]
    assert body[0][5] == ""
    assert body[1][5].startswith("boom")


@pytest.mark.parametrize("kind", [*Format])
def test_it_comes_out_in_any_format(
    client: openai.OpenAI, http: httpx.Client, kind: Format, tmp_path: Path
) -> None:
    done = end(client, create(client, xlsx(), "r.xlsx", columns=["stars", "product"]))
    answer = output(http, done, kind)
    assert answer.headers["content-type"] == MEDIA_TYPES[kind]
    assert answer.headers["content-disposition"] == f'attachment; filename="{done.id}.{kind}"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    found: list[tuple[Any, ...]]
    if kind is Format.PARQUET:
        path = tmp_path / "out.parquet"
        path.write_bytes(answer.content)
        found = duckdb.sql(f"SELECT stars, product, answer FROM '{path}'").fetchall()
    elif kind is Format.XLSX:
        book = openpyxl.load_workbook(io.BytesIO(answer.content))
        sheet = book.active
        assert sheet is not None
        found = [row[:3] for row in sheet.iter_rows(min_row=2, values_only=True)]
    elif kind is Format.JSONL:
        lines = [json.loads(line) for line in answer.text.splitlines()]
        found = [(line["stars"], line["product"], line["answer"]) for line in lines]
    else:
        lists = csv.reader(io.StringIO(answer.text), delimiter="\t" if kind is Format.TSV else ",")
        found = [(int(row[0]) if row[0] else None, row[1], row[2] or None) for row in [*lists][1:]]
    assert found == [(5, "lamp", "lamp: good, bright"), (2, "cup", None), (None, "pen", "pen: so-so")]


def test_the_output_has_what_was_asked_for(client: openai.OpenAI, http: httpx.Client) -> None:
    content = "text,long\n@SUM," + "x" * 40_000 + "\n"
    done = end(client, create(client, content, template="{{ text }}"))
    [head, row] = rows(output(http, done, usage="true", safe_csv="true"))
    assert head[2:] == ["answer", "finish_reason", "error", "prompt_tokens", "completion_tokens"]
    assert (row[0], row[2]) == ("'@SUM", "'@SUM")
    assert row[5:] == ["1", "1"]
    plain = output(http, done)
    assert [row[0] for row in rows(plain)] == ["text", "@SUM"]
    assert "x-cut-values" not in plain.headers
    assert output(http, done, "xlsx").headers["x-cut-values"] == "1"


def test_the_properties_of_a_schema_are_columns(client: openai.OpenAI, http: httpx.Client) -> None:
    done = end(client, create(client, ANSWERS, template="{{ word }}", schema=SCHEMA))
    lines = [json.loads(line) for line in output(http, done, "jsonl").text.splitlines()]
    assert [(line["mood"], line["stars"], line["parts"]) for line in lines] == [
        ("good", 4, [1, 2]),
        (None, None, None),
    ]
    assert lines[0]["error"] is None
    assert "not JSON" in lines[1]["error"]


def test_the_requests_are_those_that_the_options_say(client: openai.OpenAI, http: httpx.Client) -> None:
    fields = {
        "system": "You sell a {{ product }}.",
        "id_column": "product",
        "body": {"max_tokens": 2, "temperature": 0.5},
        "schema": SCHEMA,
        "columns": ["product"],
    }
    batch = create(client, "product,review\nlamp,one two three\n", **fields)
    shown = http.get(f"/v1/batches/{batch.id}").json()["table"]
    assert shown == {"template": TEMPLATE, **fields}
    done = end(client, batch)
    [entry] = [json.loads(line) for line in client.files.content(done.output_file_id or "").text.splitlines()]
    assert entry["custom_id"] == "lamp"
    [head, row] = rows(output(http, done))
    assert head == ["product", "mood", "stars", "parts", "finish_reason", "error"]
    assert row[:5] == ["lamp", "", "", "", "stop"]
    assert row[5].startswith("the answer is not JSON")


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [("/v1/chat/completions", {"logprobs": True}), ("/v1/jobs", {"logprobs": 0, "return_token_ids": True})],
)
def test_logprobs_and_ids_of_tokens_are_columns(
    client: openai.OpenAI, http: httpx.Client, endpoint: str, body: dict[str, Any]
) -> None:
    done = end(client, create(client, endpoint=endpoint, body=body))
    more = ["logprobs"] + ["token_ids"] * ("return_token_ids" in body)
    lines = [json.loads(line) for line in output(http, done, "jsonl").text.splitlines()]
    assert [*lines[0]][6:] == more
    assert [line["logprobs"] is None for line in lines] == [False, True, False], "the second failed"
    assert all(token["logprob"] <= 0 for token in lines[0]["logprobs"])
    if "token_ids" in more:
        assert all(isinstance(number, int) for number in lines[0]["token_ids"])
    [head, row, *_] = rows(output(http, done))
    assert head[6:] == more
    assert json.loads(row[6]) == lines[0]["logprobs"]


def test_ids_of_jobs_are_taken_as_well(client: openai.OpenAI, http: httpx.Client) -> None:
    done = end(client, create(client, endpoint="/v1/jobs", body={"max_tokens": 9}))
    assert [row[3] for row in rows(output(http, done))[1:]] == ["lamp: good, bright", "", "pen: so-so"]


def test_rows_so_far_come_while_it_runs(client: openai.OpenAI, http: httpx.Client) -> None:
    content = "n,review\n" + "".join(f"{n},x delay=0.25\n" for n in range(40))
    batch = create(client, content, template="{{ review }}")
    seen: list[list[str]] = []
    while len(seen) < 2:
        seen = rows(output(http, batch))
        assert client.batches.retrieve(batch.id).status not in ENDED
    assert 1 < len(seen) <= 40
    assert [row[0] for row in seen[1:]] == sorted((row[0] for row in seen[1:]), key=int)
    client.batches.cancel(batch.id)
    done = end(client, batch)
    whole = rows(output(http, done))
    assert [row[0] for row in whole[1:]] == [str(n) for n in range(40)]
    assert whole[-1][-1].startswith("batch_cancelled")


def test_a_retry_has_the_rows_that_failed(client: openai.OpenAI, http: httpx.Client) -> None:
    batch = end(client, create(client))
    again = http.post(f"/v1/batches/{batch.id}/retry").json()
    done = end(client, client.batches.retrieve(again["id"]))
    assert [row[0] for row in rows(output(http, done))[1:]] == ["cup"]


def test_a_row_whose_template_fails_has_an_error_and_no_other_has(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    content = b'[{"a": 1, "id": "x"}, {"a": "b", "id": "y"}, {"a": 3, "id": "x"}, {"a": 4, "id": ""}]'
    done = end(client, create(client, content, "r.json", template="{{ a + 1 }}", id_column="id"))
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 3)
    _, *body = rows(output(http, done))
    assert [row[2] for row in body] == ["2", "", "", ""]
    assert [row[4].partition(":")[0] for row in body] == [
        "",
        "template_failed",
        "duplicate_custom_id",
        "invalid_custom_id",
    ]


@pytest.mark.parametrize(
    ("content", "name", "fields", "code", "message"),
    [
        ("product,review\na\n", "r.csv", {}, "invalid_table", "r.csv: row 1 (line 2) has 1 value"),
        ("product,product\na,b\n", "r.csv", {}, "invalid_table", "r.csv: 2 columns have the name 'product'"),
        ("Product,review\na,b\n", "r.csv", {}, "invalid_table", "there is no column 'product'; did you mean"),
        (CSV, "r.csv", {"columns": ["star"]}, "invalid_table", "there is no column 'star'; did you mean 's"),
        (CSV, "r.csv", {"id_column": "id"}, "invalid_table", "there is no column 'id'; the columns are"),
        ("product,review\n", "r.csv", {}, "empty_file", "the table holds no row"),
        (b"PAR1 torn", "r.parquet", {}, "invalid_table", "r.parquet: the Parquet file is torn"),
        (b"PK", "r.xlsx", {}, "invalid_table", "r.xlsx: not an XLSX file, or a torn one"),
        (
            gzip.compress(CSV.encode(), mtime=0)[:-9],
            "r.csv.gz",
            {},
            "invalid_table",
            "r.csv.gz: the compressed file",
        ),
    ],
)
def test_a_table_that_is_useless_fails_the_batch(
    client: openai.OpenAI,
    http: httpx.Client,
    content: bytes | str,
    name: str,
    fields: dict[str, Any],
    code: str,
    message: str,
) -> None:
    done = end(client, create(client, content, name, **fields))
    assert done.status == "failed"
    assert done.errors is not None
    assert done.errors.data is not None
    [error] = done.errors.data
    assert (error.code, (error.message or "")[: len(message)]) == (code, message)
    refused = http.get(f"/v1/batches/{done.id}/output", params={"format": "csv"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_output_table")
    assert message in refused.json()["error"]["message"]


def test_a_batch_of_no_table_has_no_format(client: openai.OpenAI, http: httpx.Client) -> None:
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": CHAT,
        "body": {"messages": [{"role": "user", "content": "x"}]},
    }
    batch = client.batches.create(
        input_file_id=upload(client, json.dumps(line), "lines.jsonl"), endpoint=CHAT, completion_window="24h"
    )
    assert http.get(f"/v1/batches/{batch.id}").json()["table"] is None
    for kind, message in (("csv", "made of a table"), ("doc", "must be one of csv, tsv")):
        refused = http.get(f"/v1/batches/{batch.id}/output", params={"format": kind})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "format"
        assert message in refused.json()["error"]["message"]
    end(client, batch)


def test_without_its_input_there_is_no_table(client: openai.OpenAI, http: httpx.Client) -> None:
    done = end(client, create(client))
    client.files.delete(done.input_file_id)
    missing = http.get(f"/v1/batches/{done.id}/output", params={"format": "csv"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "file_not_found")
    assert len(http.get(f"/v1/batches/{done.id}/output").text.splitlines()) == 2


def test_tables_that_are_sent_are_few(client: openai.OpenAI, system: GatewayProcess) -> None:
    """Where nobody reads them, they wait as temporary files."""
    rows = "".join(f"{n},{'x' * 1_000_000}\n" for n in range(20))
    done = end(client, create(client, "n,text\n" + rows, template="{{ n }}"))
    url = f"/v1/batches/{done.id}/output?format=csv"
    with httpx.Client(base_url=system.url, timeout=60) as slow, contextlib.ExitStack() as opened:
        for _ in range(MOST_TABLES):
            assert opened.enter_context(slow.stream("GET", url)).status_code == 200
        refused = slow.get(url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "retry-after" in refused.headers
    with httpx.Client(base_url=system.url, timeout=60) as quick:
        wait_until(lambda: quick.get(url).status_code == 200)
        assert len(quick.get(url).content) > 20_000_000


def test_a_client_that_leaves_ends_what_makes_its_table(
    client: openai.OpenAI, system: GatewayProcess
) -> None:
    content = gzip.compress(b"a\n" + b"\n" * 5_000_000 + b"x\n", 1)  # a second of reading
    done = end(client, create(client, content, "t.csv.gz", template="{{ a }}"), timeout_s=90)
    url = f"/v1/batches/{done.id}/output?format=csv"
    with socket.create_connection(("127.0.0.1", system.port)) as connection:
        connection.sendall(f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        wait_until(lambda: bool(children(system.pid)))
        for child in children(system.pid):
            os.kill(child, signal.SIGSTOP)  # so that it does not end by itself
    wait_until(lambda: not children(system.pid))
    small = end(client, create(client))
    with httpx.Client(base_url=system.url, timeout=10) as http:
        assert len(rows(output(http, small))) == 4
