"""Tables of every kind, and every way in which they are wrong."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tables.base import sql
from tables.base.errors import TableError
from tables.base.kinds import Kind
from tables.base.table import Table
from tables.sources import json_tables
from tables.sources.open_table import open_table


def opened(folder: Path, name: str, content: str | bytes) -> Table:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_table(path, name=name)


def values(table: Table) -> list[tuple[Any, ...]]:
    return [row.values for row in table.rows()]


def wrong(folder: Path, name: str, content: str | bytes) -> str:
    """The message, which is one line, for a file that cannot be read to its end."""
    with pytest.raises(TableError) as caught:
        values(opened(folder, name, content))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "description"),
    [
        ("t.csv", "a,b\n1,x;y\n", "CSV, separated by commas"),
        ("t.csv", "a;b\n1;x,y\n2;x,y,z\n", "CSV, separated by semicolons"),
        ("t.csv", "a|b\n1|x\n", "CSV, separated by vertical bars"),
        ("t.csv", "a\tb\n1\tx\n", "CSV, separated by tabs"),
        ("t.tsv", "a\tb\n1\tx, y; z\n", "TSV"),
        ("t.csv", b"\xef\xbb\xbfa,b\r\n1,\xc3\xbc\r\n", "CSV, separated by commas"),
        ("t.csv", b"a;b\n1;\xfc \x80\n", "CSV, separated by semicolons, cp1252 (guessed)"),
        ("t.csv", b"a,b\n1,\x81\xfc\n", "CSV, separated by commas, latin-1 (guessed)"),
        ("t.csv", "a,b\n1,ü\n".encode("utf-16"), "CSV, separated by commas, UTF-16"),
        ("t.jsonl", '{"a": 1}\n\n{"b": 2}\n', "JSON lines"),
        ("t.json", ' [{"a": 1},\n {"b": [2]} ]\n', "a JSON array of objects"),
        ("t.json", '{"a": 1}\n{"b": 2}\n', "JSON lines"),
        ("t.txt", "one\n\n two\n", "lines of text"),
    ],
)
def test_what_was_guessed_is_said(tmp_path: Path, name: str, content: str | bytes, description: str) -> None:
    table = opened(tmp_path, name, content)
    assert table.description == description
    assert table.columns == (("prompt",) if name == "t.txt" else ("a", "b"))
    assert values(table)


def test_values_as_they_stand(tmp_path: Path) -> None:
    assert values(opened(tmp_path, "t.csv", 'a,b\n"x, ""y""\nz",\n\n,2\n')) == [('x, "y"\nz', ""), ("", "2")]
    assert values(opened(tmp_path, "t.csv", b"a\n\xfc\x80\n")) == [("ü€",)]
    assert values(opened(tmp_path, "t.json", '[{"a": 1}, {"b": [2], "a": null}]')) == [(1, None), (None, [2])]
    assert values(opened(tmp_path, "t.txt", "one\r\n\n two\n")) == [("one",), (" two",)]


@pytest.mark.slow
def test_a_wrong_byte_at_the_end_of_a_long_file_is_found(tmp_path: Path) -> None:
    table = opened(tmp_path, "t.csv", b"a,b\n" + b"1,plain\n" * 400_000 + b"1,\xfc\n")
    assert "cp1252" in table.description
    *_, last = table.rows()
    assert last == (400_001, ("1", "ü"))


def test_compressed_tables(tmp_path: Path) -> None:
    from backports import zstd

    for name, packed in (
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)),
        ("t.csv.zst", zstd.compress(b"a,b\n1,2\n")),
    ):
        assert values(opened(tmp_path, name, packed)) == [("1", "2")]
        torn = (
            gzip.compress(b"a,b\n" + b"1,2\n" * 9999)
            if "gz" in name
            else zstd.compress(b"a,b\n" + b"1,2\n" * 9999)
        )
        assert wrong(tmp_path, name, torn[:-9]) == f"{name}: the compressed file is torn or damaged"
        assert "compressed" in wrong(tmp_path, name, b"a,b\n1,2\n") or "gzip" in wrong(
            tmp_path, name, b"a,b\n1,2\n"
        )
    assert "compressed in itself" in wrong(tmp_path, "t.parquet.gz", b"x")


def test_a_folder_or_a_pattern_of_text_files(tmp_path: Path) -> None:
    for name, text in (("b.txt", "B\n"), ("a.txt", "Ä"), ("c.md", "C"), (".d.txt", "D"), ("e.csv", "a\nb\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert values(open_table(tmp_path)) == [("a.txt", "Ä"), ("b.txt", "B\n"), ("c.md", "C")]
    assert values(open_table(tmp_path / "*.txt")) == [("a.txt", "Ä"), ("b.txt", "B\n")]
    assert open_table(str(tmp_path / "[ab].txt")).description == "2 text files"
    with pytest.raises(TableError, match="no text files"):
        open_table(tmp_path / "*.rst")


def test_a_name_or_a_kind_decides_where_the_path_has_no_ending(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text("a\tb\n1\t2\n", encoding="utf-8")
    assert open_table(path, name="t.tsv").description == "TSV"
    assert open_table(path, kind=Kind.CSV).description == "CSV, separated by tabs"
    with pytest.raises(TableError, match=r"unknown kind of table; the known endings are .csv, .tsv"):
        open_table(path)


def test_a_header_is_split_by_what_leaves_no_name_empty(tmp_path: Path) -> None:
    table = opened(tmp_path, "t.csv", ";\nx\n")
    assert (table.columns, values(table)) == ((";",), [("x",)])


CSV_ERRORS = [
    ("a,b\n1,2\n\n1,2,3\n", "t.csv: row 2 (line 4) has 3 values, the table has 2 columns"),
    ("a,b\n1\n", "t.csv: row 1 (line 2) has 1 value, the table has 2 columns"),
    ("a,b,a\n1,2,3\n", "t.csv: 2 columns have the name 'a'"),
    ("a,,c\n1,2,3\n", "t.csv: column 2 has no name in the header"),
    ("", "t.csv: the table is empty"),
    ('a,b\n"x"y,2\n', "t.csv, line 2: not valid CSV: ',' expected after '\"'"),
    ('a,b\n"open,2\n', "t.csv, line 2: not valid CSV: unexpected end of data"),
    ("a,b\n1,\0\n", "t.csv: not a text file, it holds zero bytes"),
]


@pytest.mark.parametrize(("content", "message"), CSV_ERRORS)
def test_errors_of_csv(tmp_path: Path, content: str, message: str) -> None:
    assert wrong(tmp_path, "t.csv", content) == message


JSON_ERRORS = [
    ("t.jsonl", '{"a": 1}\n{"a": ?}\n', "t.jsonl, line 2: not valid JSON: Expecting value (column 7)"),
    ("t.jsonl", '{"a": 1}\n3\n', "t.jsonl, line 2: must be a JSON object"),
    ("t.jsonl", b'{"a": "\xfc"}\n', "t.jsonl: JSON must be UTF-8, and this file is not"),
    ("t.jsonl", '{"a": NaN}\n', "t.jsonl, line 1: not valid JSON: NaN is not JSON"),
    ("t.jsonl", "\n", "t.jsonl: the table is empty"),
    ("t.jsonl", "{}\n", "t.jsonl: the table is empty"),
    ("t.jsonl", '{"": 1}\n', "t.jsonl: column 1 has no name in the header"),
    ("t.json", "[]", "t.json: the table is empty"),
    ("t.json", '[{"a": 1}, 2]', "t.json, element 2: must be a JSON object"),
    ("t.json", '[{"a": 1} {"a": 2}]', "t.json, after element 1: expected a comma or ]"),
    ("t.json", '[{"a": 1}', "t.json, after element 1: expected a comma or ]"),
    (
        "t.json",
        '[{"a": 1}, {"a": ',
        "t.json, element 2: not valid JSON: Expecting value: line 1 column 7 (char 6)",
    ),
    ("t.json", '[{"a": 1}] x', "t.json: there is something after the array"),
]


@pytest.mark.parametrize(("name", "content", "message"), JSON_ERRORS)
def test_errors_of_json(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    assert wrong(tmp_path, name, content) == message


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.text(max_size=30) | st.integers(), min_size=1), min_size=1
    ),
    indent=st.sampled_from([None, 0, 3]),
    window=st.integers(1, 50),
)
def test_an_array_is_read_through_windows_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], indent: int | None, window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_tables, "READ_CHARS", window)
        table = opened(tmp_path_factory.mktemp("t"), "t.json", json.dumps(rows, indent=indent))
        found = [dict(zip(table.columns, row, strict=True)) for row in values(table)]
    assert [{name: value for name, value in row.items() if value is not None} for row in found] == rows


def test_long_values_are_refused_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tables.sources.csv_table.MAX_VALUE_CHARS", 100)
    monkeypatch.setattr("tables.sources.csv_table.MAX_LINE_CHARS", 200)
    monkeypatch.setattr("tables.sources.json_tables.MAX_OBJECT_CHARS", 100)
    monkeypatch.setattr("tables.sources.json_tables.READ_CHARS", 64)
    monkeypatch.setattr("tables.sources.text_tables.MAX_TEXT_CHARS", 100)
    assert "field larger than field limit" in wrong(tmp_path, "t.csv", "a\n" + "x" * 150)
    assert wrong(tmp_path, "t.csv", "a\n" + "x," * 150) == "t.csv, line 2: longer than 200 characters"
    long = json.dumps({"a": "x" * 200})
    assert wrong(tmp_path, "t.jsonl", long) == "t.jsonl, line 1: longer than 100 characters"
    assert wrong(tmp_path, "t.json", f"[{long[:-2]}") == "t.json, element 1: longer than 100 characters"
    assert wrong(tmp_path, "t.txt", "x" * 101) == "t.txt: a line is longer than 100 characters"
    with pytest.raises(TableError, match="longer than 100 characters"):
        values(open_table(tmp_path / "*.txt"))


def test_too_many_columns(tmp_path: Path) -> None:
    names = [f"c{n}" for n in range(4097)]
    assert wrong(tmp_path, "t.csv", ",".join(names)) == "t.csv: has 4,097 columns; at most 4,096 are possible"
    assert "4,097 columns" in wrong(tmp_path, "t.jsonl", json.dumps(dict.fromkeys(names, 1)))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("none.csv", "none.parquet", "none.xlsx", "none.jsonl", "none.txt"):
        with pytest.raises(TableError, match=rf"cannot read .*{name}: No such file or directory"):
            open_table(tmp_path / name)


def parquet(path: Path, query: str) -> bytes:
    import duckdb

    with duckdb.connect() as database:
        database.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
    return path.read_bytes()


def test_parquet(tmp_path: Path) -> None:
    parquet(tmp_path / "[1].parquet", "SELECT i AS a, i || 'x' AS b FROM range(5000) t(i)")
    table = open_table(tmp_path / "[1].parquet")
    assert (table.columns, table.description) == (("a", "b"), "Parquet")
    assert dict(table.types()) == {"a": "BIGINT", "b": "VARCHAR"}
    assert list(table.rows())[4999] == (5000, (4999, "4999x"))


def test_errors_of_parquet(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "whole.parquet", "SELECT i AS a FROM range(100000) t(i)")
    assert (
        wrong(tmp_path, "t.parquet", whole[:-20]) == "t.parquet: the Parquet file is torn, its end is missing"
    )
    assert wrong(tmp_path, "t.parquet", b"a,b\n1,2\n") == "t.parquet: not a Parquet file"
    assert wrong(tmp_path, "t.parquet", b"") == "t.parquet: the file is empty"
    damaged = whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :]
    assert wrong(tmp_path, "t.parquet", damaged).startswith("t.parquet: the Parquet file is damaged: ")
    assert "damaged" in wrong(tmp_path, "t.parquet", b"PAR1" + b"\xff" * 40 + b"PAR1")


def workbook(path: Path, rows: list[list[Any]]) -> None:
    book = openpyxl.Workbook()
    for row in rows:
        book.worksheets[0].append(row)
    book.save(path)


def test_xlsx(tmp_path: Path) -> None:
    workbook(tmp_path / "t.xlsx", [["a", " b "], [1, "x"], [], [None, 2.5], [True, None]])
    table = open_table(tmp_path / "t.xlsx")
    assert (table.columns, table.description) == (("a", "b"), "XLSX, sheet 'Sheet'")
    assert [*table.rows()] == [(1, (1, "x")), (2, (None, 2.5)), (3, (True, None))]


def store(path: Path, formula: str, value: str) -> None:
    """Give a formula a stored value, as spreadsheet programs do."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    before, after = f"<f>{formula}</f><v />", f"<f>{formula}</f><v>{value}</v>"
    assert before.encode() in parts[sheet].replace(b"<v></v>", b"<v />")
    parts[sheet] = parts[sheet].replace(b"<v></v>", b"<v />").replace(before.encode(), after.encode())
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def test_formulas_have_their_stored_values_or_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    workbook(path, [["a", "b"], [1, "x"], [], [2, "=A2+A4"], ["=1+1", "y"]])
    store(path, "A2+A4", "3")
    with pytest.raises(
        TableError, match=r"t.xlsx: cell A5 is a formula without a stored value; open and save"
    ):
        values(open_table(path))
    store(path, "1+1", "2")
    assert values(open_table(path)) == [(1, "x"), (2, 3), (2, "y")]


def test_errors_of_xlsx(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    workbook(path, [["a", "b"], [1, 2, 3]])
    with pytest.raises(TableError, match="cell C2 is in a column without a name"):
        values(open_table(path))
    whole = path.read_bytes()
    assert wrong(tmp_path, "torn.xlsx", whole[:-200]) == "torn.xlsx: not an XLSX file, or a torn one"
    assert wrong(tmp_path, "t2.xlsx", "a,b\n") == "t2.xlsx: not an XLSX file, or a torn one"
    with zipfile.ZipFile(tmp_path / "z.xlsx", "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(TableError, match=r"z.xlsx: the XLSX file is damaged"):
        open_table(tmp_path / "z.xlsx")
    for rows, message in (
        ([], "the table is empty"),
        ([["a", None, "b"]], "column 2 has no name"),
        ([["a", "a"]], "2 columns have the name 'a'"),
    ):
        workbook(path, rows)
        with pytest.raises(TableError, match=message):
            open_table(path)


def test_a_workbook_whose_strings_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tables.sources.xlsx_table.MAX_SHARED_BYTES", 5_000)
    workbook(tmp_path / "t.xlsx", [["a"], *[[f"text {n}"] for n in range(1000)]])
    with pytest.raises(TableError, match="too large to read: xl/"):
        open_table(tmp_path / "t.xlsx")


def test_a_row_group_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    made = "string_agg(md5((i * 1000 + j)::VARCHAR), '') AS a"
    texts = f"SELECT {made} FROM range(20000) t(i), range(50) u(j) GROUP BY i"
    duckdb.sql(f"COPY ({texts}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
    monkeypatch.setattr(sql, "READ_MEMORY", "30MB")
    with pytest.raises(TableError, match="a row group takes more than 30MB of memory: write smaller ones"):
        list(open_table(path).rows())
