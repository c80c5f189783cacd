"""What templates, previews and outputs get of Parquet's nested values, decimals and times."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tables.conversion.options import TableOptions, Wanted
from tables.conversion.output_table import OutputTable, write_numbered
from tables.conversion.process import PREVIEW, Conversion, preview_spec
from tables.conversion.seats import Seats
from tables.sources.open_table import open_table
from tables.templates.template import Template

pytestmark = pytest.mark.slow

MOMENT = datetime.datetime(2020, 1, 2, 3, 4, 5, 123456)
FIELDS = {
    "messages": "[{'role': 'user', 'content': 'it''s {\"x\"}'}, {'role': 'assistant', 'content': NULL}]",
    "meta": "{'lang': 'de', 'tags': ['a', 'NULL', NULL], 'deep': {'n': [{'x y': 1}]}}",
    "attributes": "MAP {'colour': 'red', 'size': NULL}",
    "by_number": "MAP {7: {'at': '2020-01-02'::DATE}}",
    "price": "1.50::DECIMAL(10,2)",
    "prices": "[0.10::DECIMAL(38,20)]",
    "at": "'2020-01-02 03:04:05.123456'::TIMESTAMP",
    "fine": "'2020-01-02 03:04:05.123456789'::TIMESTAMP_NS",
    "zoned": "'2020-01-02 05:04:05.123456+02'::TIMESTAMPTZ",
    "log": "[{'at': '2020-01-02 05:04:05+02'::TIMESTAMPTZ, 'fine': '2020-01-02 03:04:05'::TIMESTAMP_NS}]",
    "day": "'2020-01-02'::DATE",
    "time": "'01:02:03'::TIME",
    "id": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID",
    "kind": "{'of': 'x'::ENUM ('x', 'y'), 'for': INTERVAL 1 MONTH}",
    "raw": "{'bytes': '\\x00\\xFF'::BLOB}",
    "nothing": "NULL::STRUCT(a INTEGER)",
}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    path = tmp_path / "logs.parquet"
    selected = ", ".join(f'{value} AS "{name}"' for name, value in FIELDS.items())
    with duckdb.connect() as database:
        database.execute(f"COPY (SELECT {selected}) TO '{path}'")
    return path


def values(path: Path) -> dict[str, Any]:
    table = open_table(path)
    [row] = table.rows()
    return dict(zip(table.columns, row.values, strict=True))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}",
            'user: it\'s {"x"};assistant: ;',
        ),
        ("{{ messages[0].role }} {{ messages|length }} {{ messages[-1]['role'] }}", "user 2 assistant"),
        ("{{ meta.lang }} {{ meta.tags[1] }} {{ meta.deep.n[0]['x y'] }} {{ meta.none }}", "de NULL 1 "),
        ("{{ meta.tags }} {{ meta.deep|tojson }}", '["a","NULL",null] {"n":[{"x y":1}]}'),
        ("{% for k, v in attributes|items %}{{ k }}={{ v }};{% endfor %}", "colour=red;size=;"),
        ("{{ attributes.colour }} {{ by_number['7'].at.year }} {{ by_number[7].at }}", "red 2020 2020-01-02"),
        ("{{ by_number }}", '{"7":{"at":"2020-01-02"}}'),
        (
            "{{ price }} {{ price is number }} {{ price > 1 }} {{ prices[0] }}",
            "1.50 true true 0.10000000000000000000",
        ),
        ("{{ at }} {{ at.year }} {{ fine }} {{ fine.minute }}", f"{MOMENT} 2020 {MOMENT} 4"),
        (
            "{{ zoned }} {{ zoned.hour }} {{ log[0].at.hour }} {{ log[0].fine.second }}",
            f"{MOMENT}+00:00 3 3 5",
        ),
        ("{{ day.month }} {{ time.minute }} {{ time }}", "1 2 01:02:03"),
        (
            "{{ id }} {{ id is string }} {{ kind }}",
            'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11 true {"of":"x","for":"1 month"}',
        ),
        ("{{ raw }} {{ nothing }}{{ nothing.a }}", '{"bytes":"AP8="} '),
    ],
)
def test_templates_see_nested_values_and_times(logs: Path, source: str, text: str) -> None:
    assert Template(source).render(values(logs)) == text


def test_the_preview_of_services_sees_them_too(logs: Path) -> None:
    """In the child process that reads an upload for the console and the API."""
    source = "{{ meta.lang }}:{% for m in messages %} {{ m.role }}{% endfor %}"
    options = TableOptions(logs.name, source, columns=["messages"])
    specification = preview_spec(options, "/v1/chat/completions", Wanted(5, True), 100, 1 << 20)
    with (
        logs.open("rb") as file,
        contextlib.closing(Conversion(Seats().enter("a"), specification, file)) as conversion,
    ):
        give_up = time.monotonic() + 60
        while not conversion.has_ended(0.05):
            assert time.monotonic() < give_up
        shown = json.loads((conversion.folder / PREVIEW).read_text(encoding="utf-8"))
    [request] = shown["requests"]
    assert request["body"]["messages"] == [{"role": "user", "content": "de: user assistant"}]
    cells = dict(zip(shown["columns"], shown["rows"][0], strict=True))
    assert json.loads(cells["messages"]) == values(logs)["messages"]
    assert cells["price"] == "1.50"


def written(logs: Path, name: str) -> Path:
    result = {"id": "batch_req_1-1", "error": {"code": "boom", "message": "no"}, "response": None}
    output = OutputTable(open_table(logs), None)
    path = logs.with_name(name)
    with output.opened(path) as out:
        write_numbered(output.rows(name), [io.BytesIO(json.dumps(result).encode() + b"\n")], out)
    return path


def test_parquet_keeps_their_types_and_values(logs: Path) -> None:
    copy = written(logs, "out.parquet")
    assert {**open_table(copy).types()} == {
        **open_table(logs).types(),
        **dict.fromkeys(("answer", "finish_reason", "error"), "VARCHAR"),
    }
    with duckdb.connect() as database:
        fields = ", ".join(f'"{name}"' for name in FIELDS)
        one, two = (f"SELECT {fields} FROM '{path}'" for path in (logs, copy))
        for first, second in ((one, two), (two, one)):
            assert database.execute(f"{first} EXCEPT {second}").fetchall() == []


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.xlsx"])
def test_other_tables_have_them_as_json(logs: Path, name: str) -> None:
    found = values(written(logs, name))
    assert json.loads(found["messages"]) == values(logs)["messages"]
    assert json.loads(found["meta"]) == values(logs)["meta"]
    assert json.loads(found["attributes"]) == {"colour": "red", "size": None}
    assert Decimal(str(found["price"])) == Decimal("1.5")
    assert found["id"] == "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    assert found["zoned"] == f"{MOMENT}+00:00"


def test_json_lines_have_them_nested(logs: Path) -> None:
    found = values(written(logs, "out.jsonl"))
    assert found["messages"] == values(logs)["messages"]
    assert found["meta"] == values(logs)["meta"]
    assert found["by_number"] == {"7": {"at": "2020-01-02"}}
    assert found["price"] == 1.5
    assert found["nothing"] is None


def test_nested_text_of_any_kind_stays_as_it_is(tmp_path: Path) -> None:
    """Through DuckDB's text for nested values, which the Parquet of an output is made of."""
    texts = [
        "",
        "NULL",
        "null",
        " a ",
        "'",
        '"',
        "\\",
        "\\n",
        "\n\r\t",
        "{'a': 1}",
        "[1, 2]",
        "a=b",
        ",",
        "é\u2028😀",
    ]
    nested = [{"role": one, "content": two, "map": {two: one}} for one in texts for two in texts]
    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(json.dumps({"m": [each, None]}) + "\n" for each in nested), encoding="utf-8")
    kind = "STRUCT(role VARCHAR, content VARCHAR, map MAP(VARCHAR, VARCHAR))[]"
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as database:
        first, second = Path(folder) / "1.parquet", Path(folder) / "2.parquet"
        read = f"read_json('{lines}', format = 'nd', columns = {{m: '{kind}'}})"
        database.execute(f"COPY (SELECT * FROM {read}) TO '{first}'")
        table = open_table(first)
        assert [row.values[0][0] for row in table.rows()] == nested
        output = OutputTable(table, None)
        with output.create(second) as writer:
            for row in output.rows(second.name):
                writer.write([*row.values, None, None, None])
        assert [row.values[0][0] for row in open_table(second).rows()] == nested
