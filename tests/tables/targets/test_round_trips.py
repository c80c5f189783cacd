"""What is written in any format is read back as it was."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tables.base.errors import TableError
from tables.base.table import Table
from tables.sources.open_table import open_table
from tables.targets.create_table import create_table
from tables.targets.xlsx_writer import MAX_CHARS

pytestmark = pytest.mark.slow

TEXT_NAMES = ("t.csv", "t.tsv", "t.csv.gz", "t.tsv.zst")
NAMES = (*TEXT_NAMES, "t.parquet", "t.xlsx", "t.jsonl", "t.ndjson.gz", "t.jsonl.zst")

# Text that every format can hold: no control characters, no halves of surrogate pairs.
text = st.text(
    st.characters(
        exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff", include_characters="\n\t"
    ),
    max_size=20,
)
# A name with semicolons in a table of one column looks like several names.
names = st.characters(categories=("L", "N", "P"), codec="utf-8", exclude_characters=";")
column = st.text(names, min_size=1, max_size=8)
columns = st.lists(column, min_size=1, max_size=4, unique_by=str.lower)


def write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]], **options: Any) -> Table:
    with create_table(path, columns, **options) as writer:
        for row in rows:
            writer.write(row)
    return open_table(path)


def values(table: Table) -> list[tuple[Any, ...]]:
    return [row.values for row in table.rows()]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(columns=columns, data=st.data())
def test_text_is_read_as_it_was_written(name: str, columns: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*[text] * len(columns)), min_size=1, max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        table = write(Path(folder) / name, columns, rows)
        assert list(table.columns) == columns
        found = values(table)
        assert found == values(table), "it can be read again"
        assert [row.number for row in table.rows()] == [*range(1, len(found) + 1)]
    if name == "t.xlsx":  # an empty cell has no text, and an empty row is skipped
        rows = [tuple(value or None for value in row) for row in rows if any(row)]
    assert found == rows


TYPED = {
    "BIGINT": -(2**63),
    "DOUBLE": 0.1,
    "BOOLEAN": True,
    "VARCHAR": "ü",
    "DATE": datetime.date(1999, 12, 31),
    "TIMESTAMP": datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
    "DECIMAL(12,3)": Decimal("1.500"),
    "BLOB": b"\0\xff",
    "BIGINT[]": [1, None, 3],
}


def test_types_survive_from_parquet_to_parquet(tmp_path: Path) -> None:
    types = dict(zip((f"c{n}" for n in range(len(TYPED))), TYPED, strict=True))
    rows = [tuple(TYPED.values()), (None,) * len(TYPED)]
    first = write(tmp_path / "a.parquet", [*types], rows, types=types)
    assert dict(first.types()) == types
    second = write(tmp_path / "b.parquet", first.columns, values(first), types=first.types())
    assert dict(second.types()) == types
    assert values(second) == rows


def test_types_without_an_exact_python_type_survive_too(tmp_path: Path) -> None:
    import duckdb

    fields = {
        "at": "'2020-01-02 03:04:05.123456+00'::TIMESTAMPTZ",
        "fine": "'2020-01-02 03:04:05.123456789'::TIMESTAMP_NS",
        "map": "MAP {'a': 1, 'b': 2}",
        "object": "{'x \"); DROP TABLE rows; --': 1, 'y': 'it''s, so'}",
        "kind": "'b); DROP TABLE rows; --'::ENUM ('a', 'b); DROP TABLE rows; --')",
        "time": "'01:02:03'::TIME",
        "id": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID",
    }
    selected = ", ".join(f'{value} AS "{name}"' for name, value in fields.items())
    with duckdb.connect() as database:
        database.execute(f"COPY (SELECT {selected}) TO '{tmp_path}/a.parquet'")
        first = open_table(tmp_path / "a.parquet")
        exact = [row.values for row in first.exact_rows()]
        second = write(tmp_path / "b.parquet", first.columns, exact, types=first.types())
        assert dict(second.types()) == dict(first.types())
        one, two = (f"SELECT * FROM '{tmp_path}/{name}.parquet'" for name in "ab")
        assert database.execute(f"{one} EXCEPT {two}").fetchall() == []
    assert "2020-01-02 03:04:05.123456+00" in exact[0]


def test_types_of_json_and_xlsx_are_observed(tmp_path: Path) -> None:
    rows = [(1, 1.5, True, "a", 1, [1]), (2, 2, None, "b", "x", {"k": "v"})]
    for name in ("t.jsonl", "t.xlsx"):
        table = write(tmp_path / name, "abcdef", rows)
        kinds = ["BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR", "VARCHAR", "VARCHAR"]
        assert [*table.types().values()] == kinds
        copy = write(tmp_path / "c.parquet", table.columns, values(table), types=table.types())
        assert values(copy)[1] == (2, 2.0, None, "b", "x", '{"k":"v"}')


def test_values_that_text_has_no_form_for(tmp_path: Path) -> None:
    row = [
        None,
        True,
        Decimal("0.10"),
        {"a": [1]},
        b"\1",
        float("nan"),
        datetime.date(2020, 1, 2),
        "a\0b\ud800",
    ]
    names = [f"c{n}" for n in range(len(row))]
    assert values(write(tmp_path / "t.csv", names, [row])) == [
        ("", "true", "0.10", '{"a":[1]}', "AQ==", "nan", "2020-01-02", "a\ufffdb?")
    ]
    write(tmp_path / "t.jsonl", names, [row])
    line = (tmp_path / "t.jsonl").read_text(encoding="utf-8")
    assert [*json.loads(line).values()] == [None, True, 0.1, {"a": [1]}, "AQ==", None, "2020-01-02", "a\0b?"]
    (found,) = values(write(tmp_path / "t.xlsx", names, [row]))
    assert found == (
        None,
        True,
        0.1,
        '{"a":[1]}',
        "AQ==",
        "nan",
        datetime.datetime(2020, 1, 2),
        "a\ufffdb\ufffd",
    )


RISKY = ["=1+1", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "-5", "+1.5", "a=b", "-"]


def test_no_cell_of_a_workbook_is_a_formula(tmp_path: Path) -> None:
    write(tmp_path / "t.xlsx", ["=A1", "plain"], [(value, "x") for value in RISKY])
    sheet = openpyxl.load_workbook(tmp_path / "t.xlsx").worksheets[0]
    assert [cell.data_type for row in sheet.iter_rows() for cell in row] == ["s"] * 2 * (len(RISKY) + 1)
    assert [row[0].value for row in sheet.iter_rows(min_row=2)] == RISKY


def test_safe_csv_quotes_what_would_be_a_formula(tmp_path: Path) -> None:
    write(tmp_path / "t.csv", ["=A1"], [[value] for value in RISKY], safe_csv=True)
    cells = [
        row[0]
        for row in csv.reader(io.StringIO((tmp_path / "t.csv").read_text(encoding="utf-8"), newline=""))
    ]
    assert cells == ["'=A1", "'=1+1", "'+1+cmd", "'-2+3", "'@SUM(A1)", "'\t=1", "-5", "+1.5", "a=b", "'-"]
    with pytest.raises(TableError, match="for CSV and TSV"):
        create_table(tmp_path / "t.xlsx", ["a"], safe_csv=True)


def test_what_a_cell_cannot_hold_is_cut_and_counted(tmp_path: Path) -> None:
    with create_table(tmp_path / "t.xlsx", ["a"]) as writer:
        writer.write(["x" * (MAX_CHARS + 1)])
        writer.write(["y" * MAX_CHARS])
    assert writer.cut == 1
    assert [len(row[0]) for row in values(open_table(tmp_path / "t.xlsx"))] == [MAX_CHARS, MAX_CHARS]
    large = write(tmp_path / "n.xlsx", ["a"], [[2**53 + 1], [2**53]])
    assert values(large) == [(str(2**53 + 1),), (2**53,)]


def test_a_value_that_does_not_fit_its_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"t.parquet: rows 1 to 2: .*BIGINT|INT64"):
        write(tmp_path / "t.parquet", ["a"], [[1], ["x"]], types={"a": "BIGINT"})
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("table-")] == []


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.xlsx"])
def test_names_of_columns_are_checked_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(TableError, match="2 columns have the name 'a'"):
        create_table(tmp_path / name, ["a", "b", "a"])
    with pytest.raises(TableError, match=r"cannot write this kind of file; its name must end in .csv, "):
        create_table(tmp_path / "t.pdf", ["a"])
    with pytest.raises(TableError, match="compressed in itself"):
        create_table(tmp_path / "t.parquet.gz", ["a"])
    with pytest.raises(TableError, match="cannot differ by case alone"):
        create_table(tmp_path / "t.parquet", ["a", "A"])
    assert not [*tmp_path.iterdir()]


def test_compressed_text_is_what_others_read(tmp_path: Path) -> None:
    write(tmp_path / "t.csv.gz", ["a"], [["x"]])
    assert gzip.decompress((tmp_path / "t.csv.gz").read_bytes()) == b"a\nx\n"
