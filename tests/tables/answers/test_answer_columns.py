"""Which columns follow the original ones, and what an answer puts into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tables.answers.answer_columns import Answer, AnswerColumns, parse_answer
from tables.answers.schema import check_schema, read_schema, schema_of_fields
from tables.base.errors import TableError

SCHEMA = schema_of_fields("mood:good|bad, stars:int, sure:bool, score:number")


def test_without_a_schema_there_is_one_column_for_the_answer() -> None:
    columns = AnswerColumns(["review"])
    assert columns.names == ["answer", "finish_reason", "error"]
    assert columns.values(Answer("so", "stop")) == (["so", "stop", None], None)
    assert columns.values(Answer("par", None, "gone: away")) == (["par", None, "gone: away"], "gone: away")


def test_with_a_schema_there_is_one_for_each_property() -> None:
    columns = AnswerColumns(["review"], SCHEMA, usage=True)
    assert columns.types == {
        "mood": "VARCHAR",
        "stars": "BIGINT",
        "sure": "BOOLEAN",
        "score": "DOUBLE",
        "finish_reason": "VARCHAR",
        "error": "VARCHAR",
        "prompt_tokens": "BIGINT",
        "completion_tokens": "BIGINT",
    }
    text = '{"stars": 3, "mood": "good", "sure": true, "score": 1}'
    assert columns.values(Answer(text, "stop", None, 7, 9))[0] == ["good", 3, True, 1, "stop", None, 7, 9]


def test_a_name_that_the_table_has_gets_a_suffix() -> None:
    assert AnswerColumns(["Answer", "error", "error_2"]).names == ["answer_2", "finish_reason", "error_3"]
    both = check_schema({"type": "object", "properties": {"a": {}, "A": {}, "error": {}}}, "s")
    assert AnswerColumns([], both).names == ["a", "A_2", "error", "finish_reason", "error_2"]


@pytest.mark.parametrize(
    ("text", "reason", "error"),
    [
        ('{"mood": "go', "length", "the answer was cut off by max_tokens"),
        ("so", "stop", "the answer is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[1]", "stop", "the answer is not a JSON object"),
        ('{"stars": 9223372036854775808}', "stop", "stars: 9223372036854775808 does not fit its column"),
        ('{"stars": true}', "stop", "stars: True does not fit its column"),
        ('{"sure": 1}', "stop", "sure: 1 does not fit its column"),
        ('{"score": 1e999}', "stop", "score: inf does not fit its column"),
    ],
)
def test_an_answer_that_does_not_fit_the_schema_is_an_error(text: str, reason: str, error: str) -> None:
    values, found = AnswerColumns([], SCHEMA).values(Answer(text, reason))
    assert (values, found) == ([None] * 4 + [reason, error], error)


def body(**choice: Any) -> dict[str, Any]:
    return {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}


def test_answers_are_read_from_batch_output() -> None:
    chat = body(message={"content": "so"}, finish_reason="stop")
    completion = body(text="so", finish_reason="length")
    good = {"error": None, "response": {"status_code": 200, "body": chat}}
    assert parse_answer(good) == Answer("so", "stop", None, 1, 2)
    good["response"]["body"] = completion  # type: ignore[index]
    assert parse_answer(good) == Answer("so", "length", None, 1, 2)
    refused = {"error": {"code": "x", "message": "a\nb"}}
    assert parse_answer({"error": None, "response": {"status_code": 404, "body": refused}}).error == "x: a b"
    cancelled = {"code": "c", "message": "m", "partial": "so far"}
    assert parse_answer({"error": cancelled, "response": None}) == Answer("so far", None, "c: m")


def test_short_lists_of_fields() -> None:
    assert SCHEMA.content["properties"]["mood"] == {"type": "string", "enum": ["good", "bad"]}
    assert SCHEMA.content["required"] == ["mood", "stars", "sure", "score"]
    assert SCHEMA.response_format["json_schema"]["strict"] is True
    for text, message in (
        ("a", "'a' is not name:type, as in mood:good|bad,stars:integer"),
        ("a:int,", "'' is not name:type"),
        ("a:in", "a: there is no type 'in'; there are string, integer, number, boolean, and words"),
        ("a:int,a:int", "two fields have the name 'a'"),
        ("a:x|", "a: 'x|' has an empty word"),
    ):
        with pytest.raises(TableError) as caught:
            schema_of_fields(text)
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "s.json, line 1: not valid JSON"),
        (b"\xff", "s.json: not valid UTF-8"),
        (b"[]", "s.json: no JSON Schema: it must be an object"),
        (b'{"type": "objekt"}', "s.json: no JSON Schema: type: 'objekt' is not valid"),
        (
            b'{"type": "object", "properties": {"a": {"type": 3}}}',
            "no JSON Schema: properties.a.type: 3 is not valid",
        ),
        (b'{"type": "array"}', "s.json: must be the schema of an object with properties"),
        (b'{"type": "object"}', "s.json: must be the schema of an object with properties"),
        (b"[" * 100_000, "s.json: not valid JSON"),
        (b" " * (2**20 + 1), "s.json: a schema of more than 1 MiB is too large"),
    ],
)
def test_a_schema_that_is_no_schema(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(content)
    with pytest.raises(TableError) as caught:
        read_schema(path)
    assert message in str(caught.value)
    with pytest.raises(TableError, match="cannot read"):
        read_schema(tmp_path / "none.json")


def test_types_of_properties(tmp_path: Path) -> None:
    properties = {
        "a": {"type": ["integer", "null"]},
        "b": {"type": "array"},
        "c": {"type": ["integer", "string"]},
        "d": {"enum": [1]},
        "e": True,
    }
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"type": "object", "properties": properties}), encoding="utf-8")
    assert [*read_schema(path).types.values()] == ["BIGINT", *["VARCHAR"] * 4]
