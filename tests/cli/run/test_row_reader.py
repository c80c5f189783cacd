"""Tables as inputs: which inputs are tables, the prompts of their rows, and what is wrong with them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.base.errors import BadInput
from cli.prompts.formats import Format
from cli.prompts.prompt_reader import ReadOptions
from cli.prompts.source import Source, opened_source
from tables.targets.create_table import create_table

ROWS = [("x1", "lamp", "good"), ("x2", "mug", ""), ("x3", "pen", "bad")]
COLUMNS = ("code", "product", "review")
NAMES = ("t.csv", "t.tsv", "t.csv.gz", "t.parquet", "t.xlsx", "t.jsonl", "t.jsonl.zst")


def table(folder: Path, name: str) -> Path:
    path = folder / name
    with create_table(path, COLUMNS) as writer:
        for row in ROWS:
            writer.write(row)
    return path


def source(path: Path, tabular: bool = False, **options: Any) -> Source:
    return Source(path, path.name, ReadOptions(**options), tabular)


def prompts(path: Path, **options: Any) -> list[str]:
    lines = list(source(path, **options).lines())
    assert [line.problems for line in lines] == [()] * len(lines)
    return [line.job["prompt"] for line in lines]


def text(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_table_gives_the_same_prompts(tmp_path: Path, name: str) -> None:
    read = source(table(tmp_path, name), template="{{ product }}: {{ review }}", id_column="code")
    lines = list(read.lines())
    assert [line.job for line in lines] == [{"prompt": p} for p in ("lamp: good", "mug: ", "pen: bad")]
    assert [(line.index, line.number, line.custom_id) for line in lines] == [
        (0, 1, "x1"),
        (1, 2, "x2"),
        (2, 3, "x3"),
    ]
    assert read.rows.missing() == {"review": 1}
    assert prompts(tmp_path / name, column="product", limit=2) == ["lamp", "mug"]


def test_a_column_is_found_by_itself(tmp_path: Path) -> None:
    assert prompts(text(tmp_path, "a.csv", "only\nx\n")) == ["x"]
    assert prompts(text(tmp_path, "b.csv", "id,prompt\n1,x\n")) == ["x"]
    assert prompts(text(tmp_path, "c.json", '[{"prompt": "x", "n": 1}]')) == ["x"]
    with pytest.raises(BadInput, match=r"the columns are 'id', 'text': say with --template or --column"):
        prompts(text(tmp_path, "d.csv", "id,text\n1,x\n"))
    assert [
        line.custom_id for line in source(text(tmp_path, "e.csv", "prompt,custom_id\nx,mine\n")).lines()
    ] == ["mine"]


def test_json_lines_and_text_are_rows_only_if_the_options_say_so(tmp_path: Path) -> None:
    lines = text(tmp_path, "a.jsonl", '{"prompt": "x", "n": 1}\n')
    assert source(lines).table is None
    assert prompts(lines, template="{{ n }} {{ prompt }}") == ["1 x"]
    plain = text(tmp_path, "a.txt", "one\ntwo\n")
    assert source(plain).table is None
    assert source(plain, tabular=True).table is not None
    assert prompts(plain, template="Say {{ prompt }}.") == ["Say one.", "Say two."]
    assert source(plain, form=Format.BATCH, tabular=True).table is None


def test_a_system_message_is_a_template_too(tmp_path: Path) -> None:
    path = table(tmp_path, "t.csv")
    lines = list(source(path, column="product", system="{{ review }}", defaults={"seed": 1}).lines())
    assert [line.job for line in lines][:2] == [
        {
            "seed": 1,
            "messages": [{"role": "system", "content": "good"}, {"role": "user", "content": "lamp"}],
        },
        {"seed": 1, "prompt": "mug"},
    ]


def test_what_is_wrong_with_a_row_stays_with_the_row(tmp_path: Path) -> None:
    path = text(tmp_path, "t.csv", f"id,n,p\na,1,x\na,2,y\n,3,z\nb,q,w\n{'c' * 513},5,v\nd,6,\n")
    read = source(path, template="{{ p }}{{ '' if n|int else 1 + n }}", id_column="id")
    problems = {line.number: [str(problem) for problem in line.problems] for line in read.lines()}
    assert problems == {
        1: [],
        2: ["custom_id: 'a' is also that of row 1"],
        3: ["custom_id: must be a string of 1 to 512 characters"],
        4: ["the template fails for this row: unsupported operand type(s) for +: 'int' and 'str'"],
        5: ["custom_id: must be a string of 1 to 512 characters"],
        6: ["prompt: empty"],
    }
    assert all((not line.problems) == bool(line.job) for line in read.lines())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "{{ revue }}"}, "--template: there is no column 'revue'; did you mean 'review'?"),
        ({"template": "{{ review"}, "--template: the template, line 1: unexpected end of template"),
        ({"column": "reviews"}, "--column: there is no column 'reviews'; did you mean 'review'?"),
        ({"column": "review", "system": "{{ produkt }}"}, "--system: there is no column 'produkt'"),
        ({"column": "review", "id_column": "kode"}, "--id: there is no column 'kode'; did you mean 'code'?"),
    ],
)
def test_columns_that_do_not_exist(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        list(source(table(tmp_path, "t.csv"), **options).lines())
    assert str(caught.value).startswith(message)


def test_a_table_that_cannot_be_read_to_its_end_is_bad_input(tmp_path: Path) -> None:
    path = text(tmp_path, "t.csv", "a,b\n1,2\n3\n")
    with pytest.raises(BadInput, match=r"t.csv: row 2 \(line 3\) has 1 value, the table has 2 columns"):
        list(source(path, column="a").lines())
    with pytest.raises(BadInput, match=r"the table has no rows"):
        source(text(tmp_path, "e.csv", "a\n")).summarize(lambda _: None)


def test_folders_and_patterns(tmp_path: Path) -> None:
    text(tmp_path, "b.txt", "B")
    text(tmp_path, "a.txt", "A")
    assert prompts(tmp_path, template="{{ file }}: {{ text }}") == ["a.txt: A", "b.txt: B"]
    assert prompts(tmp_path / "a*.txt", column="text") == ["A"]
    before = source(tmp_path).sha256()
    text(tmp_path, "a.txt", "C")
    assert source(tmp_path).sha256() != before


def test_standard_input_is_told_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, options, expected in (
        ("a,b\n1,2\n", {"column": "b"}, [{"prompt": "2"}]),
        ("a\tb\n1\t2\n", {"column": "b", "form": Format.TSV}, [{"prompt": "2"}]),
        (json.dumps({"a": 1}), {"template": "{{ a }}"}, [{"prompt": "1"}]),
        (json.dumps([{"a": 1}]), {"column": "a", "form": Format.JSON}, [{"prompt": "1"}]),
        ("a,b\n", {}, [{"prompt": "a,b"}]),
    ):
        stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(content.encode())))  # type: ignore[arg-type]
        monkeypatch.setattr(sys, "stdin", stdin)
        with opened_source("-", ReadOptions(**options)) as opened:  # type: ignore[arg-type]
            assert [line.job for line in opened.lines()] == expected
