"""Every character of Unicode's first plane, in every output format: written, read back, compared."""

from __future__ import annotations

import csv
import io
import re
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import openpyxl
import pytest
from backports import zstd
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tables.base.kinds import WRITABLE
from tables.sources.open_table import open_table
from tables.targets.create_table import create_table

pytestmark = pytest.mark.slow

NAMES = (*(f"t{ending}" for ending in WRITABLE), "t.csv.zst", "t.tsv.zst")
CSV_NAMES = tuple(name for name in NAMES if ".csv" in name or ".tsv" in name)
FIRST_PLANE = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
RISKY = (*"=+-@", *"\uff1d\uff0b\uff0d\uff20")
COLUMNS = ["first", "second", "third"]

# Characters that some reader or writer treats specially come often.
special = st.sampled_from([*"\0\t\n\v\f\r\x1c\x1e\x1f\x7f\x85\u2028\u2029\ufeff\ufffe\uffff\"',;|=+-@ a"])
text = st.text(special | st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=8)
escapes = st.sampled_from(
    ["_x000D_", "_x005F_x000d_", "_x0041_", "_xD83D_", "NULL", "NaN", "#N/A", "1e5", "TRUE"]
)
rows = st.lists(st.tuples(*[text | escapes] * len(COLUMNS)), min_size=1, max_size=5)


def held(name: str, value: str) -> str | None:
    """What docs/reference/tables.md says that a format holds of a text."""
    if name in CSV_NAMES:
        return value.replace("\0", "\ufffd")
    if name == "t.xlsx":
        lines = re.sub("\r\n?", "\n", value)
        return re.sub("[\x00-\x08\x0b-\x1f\ufffe\uffff]", "\ufffd", lines) or None
    return value


def write(
    path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]], *, safe_csv: bool = False
) -> None:
    with create_table(path, columns, safe_csv=safe_csv) as writer:
        for row in rows:
            writer.write(row)


def with_shared_strings(path: Path, texts: Sequence[str]) -> None:
    """A column of texts as spreadsheet programs write them: in a table of their own, formatted in parts."""
    namespace = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    book = openpyxl.Workbook()
    for row in range(len(texts)):
        book.active.cell(row + 1, 1, row)
    book.save(plain := path.with_suffix(".plain"))
    runs = "".join(f"<si><r><t>{t[:2]}</t></r><r><b/><t>{t[2:]}</t></r></si>" for t in texts)
    strings = f"<sst {namespace}>{runs}</sst>"
    types = (
        '<Override PartName="/xl/sharedStrings.xml" '
        'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"/></Types>'
    )
    with zipfile.ZipFile(plain) as read, zipfile.ZipFile(path, "w") as write:
        for name in {*read.namelist()} - {"xl/sharedStrings.xml"}:
            content = read.read(name).decode()
            if name.endswith("sheet1.xml"):
                content = content.replace('t="n"', 't="s"')
            if name == "[Content_Types].xml" and "sharedStrings" not in content:
                content = content.replace("</Types>", types)
            write.writestr(name, content)
        write.writestr("xl/sharedStrings.xml", strings)


def test_what_a_spreadsheet_program_escaped_is_read_once(tmp_path: Path) -> None:
    with_shared_strings(path := tmp_path / "t.xlsx", ["text", "_x005F_x0041_", "_x0041_", "a_x000D_b"])
    assert read(path) == [("_x0041_",), ("A",), ("a\rb",)]


def read(path: Path) -> list[tuple[str | None, ...]]:
    return [row.values for row in open_table(path).rows()]


def read_by_python(path: Path) -> list[tuple[str, ...]]:
    """By its csv module, which knows nothing of our writer."""
    content = path.read_bytes()
    if path.suffix == ".zst":
        content = zstd.decompress(content)
    separator = "\t" if ".tsv" in path.name else ","
    lines = io.StringIO(content.decode(), newline="")
    return [tuple(row) for row in csv.reader(lines, delimiter=separator, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_every_character_alone_first_last_and_between(tmp_path: Path, name: str) -> None:
    rows = [(character, f"{character}a{character}", f"a{character}b") for character in FIRST_PLANE]
    write(tmp_path / name, COLUMNS, rows)
    expected = [tuple(held(name, value) for value in row) for row in rows]
    assert read(tmp_path / name) == expected
    if name in CSV_NAMES:
        assert read_by_python(tmp_path / name) == [tuple(COLUMNS), *expected]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(rows=rows)
@example(rows=[("\r", "a\r=1+1", "\r\n"), ("", "\n\r", "a\rb")])
def test_any_text_is_read_as_it_was_written(name: str, rows: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path, COLUMNS, rows)
        expected = [tuple(held(name, value) for value in row) for row in rows]
        if name == "t.xlsx":  # an empty row is skipped
            expected = [row for row in expected if any(row)]
        assert read(path) == expected
        if name in CSV_NAMES:
            assert read_by_python(path) == [tuple(COLUMNS), *expected]


@pytest.mark.parametrize("name", CSV_NAMES)
@settings(max_examples=60, deadline=None)
@given(rows=rows)
def test_one_column_alone_is_read_as_it_was_written(name: str, rows: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path, ["a"], [row[:1] for row in rows])
        expected = [(held(name, row[0]),) for row in rows]
        assert read(path) == expected
        assert read_by_python(path) == [("a",), *expected]


@pytest.mark.parametrize("name", CSV_NAMES)
def test_safe_csv_leaves_no_formula_after_any_character(tmp_path: Path, name: str) -> None:
    """A formula may follow what programs drop at the start of a cell, or take for the end of a line."""
    starts = ["", *FIRST_PLANE]
    rows = [(f"{start}=1+1", f"{start}@a", f"a{start}=1+1") for start in starts]
    write(tmp_path / name, COLUMNS, rows, safe_csv=True)
    found = read(tmp_path / name)
    assert read_by_python(tmp_path / name) == [tuple(COLUMNS), *found]
    assert len(found) == len(rows), "no character begins a row"
    for row, cells in zip(rows, found, strict=True):
        for value, cell in zip(row, cells, strict=True):
            assert cell is not None
            assert not cell.startswith(("\t", "\r", "\n", *RISKY)), (value, cell)
            assert not "".join(filter(str.isprintable, cell)).lstrip().startswith(RISKY), (value, cell)
            assert cell.removeprefix("'") == held(name, value).removeprefix("'"), (value, cell)


@pytest.mark.parametrize("name", CSV_NAMES)
@pytest.mark.parametrize(
    "columns", [["a;b"], ["a|b", "c\td"], ["\ufeffa", "b"], ["a,b;c"], ["x\x85y", "a;b"]]
)
def test_names_of_columns_are_not_split(tmp_path: Path, name: str, columns: list[str]) -> None:
    rows = [tuple("v" for _ in columns), tuple(";" for _ in columns)]
    write(tmp_path / name, columns, rows)
    assert [*open_table(tmp_path / name).columns] == columns
    assert read(tmp_path / name) == rows


def test_escapes_of_workbooks_are_those_of_spreadsheet_programs(tmp_path: Path) -> None:
    write(tmp_path / "t.xlsx", ["a"], [("_x0041_",), ("a\r\nb",)])
    with zipfile.ZipFile(tmp_path / "t.xlsx") as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml").decode()
    assert "<t>_x005F_x0041_</t>" in sheet, "a program would show A"
    assert "a\nb" in sheet
    book = openpyxl.Workbook()
    book.worksheets[0].append(["na_x000D_\nme"])
    book.worksheets[0].append(["one_x000D_\ntwo_x000d_"])
    book.save(tmp_path / "made.xlsx")
    assert [*open_table(tmp_path / "made.xlsx").columns] == ["na\r\nme"]
    assert read(tmp_path / "made.xlsx") == [("one\r\ntwo\r",)]
