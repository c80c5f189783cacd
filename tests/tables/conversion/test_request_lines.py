"""The lines that rows become."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tables.base.errors import TableError
from tables.conversion.options import TableOptions
from tables.conversion.request_lines import LineLimits, TableRefused, write_lines
from tables.sources.open_table import open_table

URL = "/v1/chat/completions"
LIMITS = LineLimits(rows=10, line_bytes=1000, bytes=5000)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def lines(
    folder: Path, content: str, name: str = "t.csv", limits: LineLimits = LIMITS, **options: Any
) -> list[Any]:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    out = io.BytesIO()
    chosen = TableOptions(name, **{"template": "{{ a }}", **options})
    write_lines(open_table(path), TableOptions.loaded(chosen.dumped()), URL, limits, out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_is_what_one_would_have_written(tmp_path: Path) -> None:
    [line] = lines(
        tmp_path,
        "a,b\nx,y\n",
        template="Say {{ a }}",
        system="As {{ b }}",
        schema=SCHEMA,
        id_column="b",
        body={"max_tokens": 5},
    )
    form = {"name": "answer", "schema": SCHEMA, "strict": True}
    assert line == {
        "custom_id": "y",
        "method": "POST",
        "url": URL,
        "body": {
            "max_tokens": 5,
            "messages": [{"role": "system", "content": "As y"}, {"role": "user", "content": "Say x"}],
            "response_format": {"type": "json_schema", "json_schema": form},
        },
    }


def test_ids_are_the_numbers_of_rows_and_text_stays_as_it_is(tmp_path: Path) -> None:
    found = lines(tmp_path, '[{"a": "é\\n"}, {"a": "\\ud800"}]', "t.json")
    assert [(line["custom_id"], line["body"]["messages"][0]["content"]) for line in found] == [
        ("1", "é\n"),
        ("2", "\ud800"),
    ]


def test_a_row_that_gives_no_request_has_a_reason(tmp_path: Path) -> None:
    content = json.dumps([{"a": "x"}, {"a": 1}, {"a": "y" * 1000}, {"a": " "}])
    found = lines(
        tmp_path,
        content,
        "t.json",
        template="{% if a is string and a == ' ' %} {% else %}{{ a + 'z' }}{% endif %}",
    )
    assert found[0]["body"]["messages"][0]["content"] == "xz"
    assert found[1][:2] == ["2", "template_failed"]
    assert found[3] == ["4", "empty_prompt", "the prompt of this row is empty"]
    assert found[2] == ["3", "line_too_long", "the request is longer than 1,000 bytes"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("a\n", "empty_file"),
        ("a\n" + "x\n" * 11, "too_many_tasks"),
        ("a\n" + ("x" * 800 + "\n") * 6, "table_too_large"),
    ],
)
def test_a_table_may_be_too_large_and_must_not_be_empty(tmp_path: Path, content: str, code: str) -> None:
    with pytest.raises(TableRefused) as refused:
        lines(tmp_path, content)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "options", [{"template": "{{ A }}"}, {"system": "{{ A }}"}, {"columns": ["A"]}, {"id_column": "A"}]
)
def test_a_column_that_does_not_exist_is_named_before_a_line_is_written(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(TableError, match="there is no column 'A'; did you mean 'a'"):
        lines(tmp_path, "a\nx\n", **options)
