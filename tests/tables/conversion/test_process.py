"""Conversions in child processes: their limits, and that nothing of them stays."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import random
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import openpyxl
import pytest

from tables.conversion import preview, process
from tables.conversion.options import TableOptions, Wanted
from tables.conversion.process import Conversion, ConversionFailed, lines_spec, output_spec
from tables.conversion.request_lines import LineLimits
from tables.conversion.seats import Seat, Seats
from tables.sources.open_table import open_table

URL = "/v1/chat/completions"
LIMIT_S = 60.0

pytestmark = pytest.mark.slow


@functools.cache
def slow() -> bytes:
    """A table that takes seconds to read, and has no row."""
    return gzip.compress(b"a\n" + b"\n" * 100_000_000, 1)


def free_seat() -> Seat:
    return Seats().enter("a")


@contextlib.contextmanager
def opened(content: bytes) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file


def wait(conversion: Conversion, limit_s: float = LIMIT_S) -> None:
    give_up = time.monotonic() + limit_s
    while not conversion.has_ended(0.05):
        assert time.monotonic() < give_up


def converted(content: bytes, name: str = "t.csv", **changes: Any) -> bytes:
    """The lines; changes: of the specification."""
    specification = lines_spec(TableOptions(name, "{{ a }}"), URL, 1000, 1 << 20, 1 << 20) | changes
    with opened(content) as table, opened(b"") as lines:
        conversion = Conversion(free_seat(), specification, table, lines=lines)
        with contextlib.closing(conversion):
            wait(conversion)
        assert not conversion.folder.exists()
        lines.seek(0)
        return lines.read()


def test_rows_become_lines() -> None:
    found = [json.loads(line) for line in converted(b"a,b\nx,y\nz,\n").splitlines()]
    assert [line["custom_id"] for line in found] == ["1", "2"]


def test_results_become_columns() -> None:
    result = {
        "id": "batch_req_1-2",
        "custom_id": "z",
        "error": {"code": "boom", "message": "no luck", "line": 2},
        "response": None,
    }
    with opened(b"a,b\nx,y\nz,w\n") as table, opened(json.dumps(result).encode() + b"\n") as results:
        specification = output_spec(TableOptions("t.csv", "{{ a }}", columns=["b"]), "out.csv")
        with contextlib.closing(
            Conversion(free_seat(), specification, table, results=[results])
        ) as conversion:
            wait(conversion)
            text = (conversion.folder / "out.csv").read_text()
    assert text == "b,answer,finish_reason,error\nw,,,boom: no luck\n"


def test_the_output_has_what_was_asked_for() -> None:
    message = {"message": {"content": "=1+1"}, "finish_reason": "stop"}
    body = {"choices": [message], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    result = {"id": "batch_req_1-1", "error": None, "response": {"status_code": 200, "body": body}}
    with opened(b"a\nx\n") as table, opened(json.dumps(result).encode() + b"\n") as results:
        options = TableOptions("t.csv", "{{ a }}")
        specification = output_spec(options, "out.csv", usage=True, safe_csv=True)
        with contextlib.closing(
            Conversion(free_seat(), specification, table, results=[results])
        ) as conversion:
            wait(conversion)
            text = (conversion.folder / "out.csv").read_text()
    assert text == "a,answer,finish_reason,error,prompt_tokens,completion_tokens\nx,'=1+1,stop,,3,2\n"


def test_values_that_were_cut_are_counted() -> None:
    failed = {"code": "boom", "message": "x" * 40_000}
    result = {"id": "batch_req_1-1", "error": failed, "response": None}
    with opened(b"a\nx\n") as table, opened(json.dumps(result).encode() + b"\n") as results:
        specification = output_spec(TableOptions("t.csv", "{{ a }}"), "out.xlsx")
        with contextlib.closing(
            Conversion(free_seat(), specification, table, results=[results])
        ) as conversion:
            wait(conversion)
            assert conversion.cut == 1


def test_errors_name_the_file_as_its_owner_does() -> None:
    with pytest.raises(ConversionFailed, match=r"^t\.parquet: the Parquet file is damaged") as refused:
        converted(b"PAR1" + b"x" * 100 + b"PAR1", "t.parquet")
    assert refused.value.code == "invalid_table"
    assert "/" not in str(refused.value)


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CPU_S", 1)
    with pytest.raises(ConversionFailed, match="more than 1 s of processor time") as refused:
        converted(slow(), "t.csv.gz")
    assert refused.value.code == "table_too_large"


def test_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WALL_S", 0.5)
    with pytest.raises(ConversionFailed, match="processor time"):
        converted(slow(), "t.csv.gz")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MEMORY_BYTES", 256 << 20)
    content = b'[{"a": [' + b"[1]," * 3_000_000 + b"1]}]"
    with pytest.raises(ConversionFailed, match="more than 256 MiB of memory") as refused:
        converted(content, "t.json")
    assert refused.value.code == "table_too_large"


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_an_output_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "OUTPUT_BYTES", 500_000)
    failed = {"code": "boom", "message": random.Random(0).randbytes(2_000_000).hex()}
    result = {"id": "batch_req_1-1", "custom_id": "1", "error": failed, "response": None}
    with opened(b"a\nx\n") as table, opened(json.dumps(result).encode() + b"\n") as results:
        specification = output_spec(TableOptions("t.csv", "{{ a }}"), name)
        conversion = Conversion(free_seat(), specification, table, results=[results])
        with (
            contextlib.closing(conversion),
            pytest.raises(ConversionFailed, match="more than 500,000 bytes on the disk") as refused,
        ):
            wait(conversion)
    assert refused.value.code == "table_too_large"


def test_a_full_disk_is_no_fault_of_the_table() -> None:
    specification = lines_spec(TableOptions("t.csv", "{{ a }}"), URL, 1000, 1 << 20, 1 << 20)
    with opened(b"a\nx\n") as table, Path("/dev/full").open("r+b", buffering=0) as lines:
        conversion = Conversion(free_seat(), specification, table, lines=lines)
        with (
            contextlib.closing(conversion),
            pytest.raises(
                ConversionFailed, match=r"temporary files in /.*: No space left on device: make room there"
            ) as refused,
        ):
            wait(conversion)
    assert refused.value.storage


def test_it_can_be_ended_at_any_time() -> None:
    specification = lines_spec(TableOptions("t.csv.gz", "{{ a }}"), URL, 1000, 1 << 20, 1 << 20)
    with opened(slow()) as table, opened(b"") as lines:
        conversion = Conversion(free_seat(), specification, table, lines=lines)
        assert not conversion.has_ended(0.2)
        conversion.close()
        assert not Path(conversion.folder).exists()


def test_it_begins_anew_where_its_seat_was_lost() -> None:
    rows = 2_000
    content = gzip.compress(b"a\n" + b"x\n" * rows + b"\n" * 5_000_000, 1)  # a second of reading
    specification = lines_spec(TableOptions("t.csv.gz", "{{ a }}"), URL, rows, 1 << 20, 1 << 30)
    seats = Seats(2, 1, turn_s=0.5)
    other, own = seats.enter("other"), seats.enter("own")
    give_up = time.monotonic() + LIMIT_S
    with (
        opened(content) as table,
        opened(b"") as lines,
        contextlib.closing(Conversion(own, specification, table, lines=lines)) as conversion,
    ):
        while not conversion.has_ended(0.01) and own.held():
            assert time.monotonic() < give_up
        assert other.stays
        assert not conversion.has_ended(0.01)
        assert not conversion.folder.exists()
        other.leave()
        wait(conversion)
        lines.seek(0)
        found = [json.loads(line)["custom_id"] for line in lines.read().splitlines()]
    assert found == [str(number) for number in range(1, rows + 1)]


def test_a_count_that_takes_long_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preview, "COUNT_S", 0.0)
    path, shown = tmp_path / "t.csv", io.StringIO()
    path.write_bytes(b"a\n1\n2\n")
    limits = LineLimits(rows=10, line_bytes=100, bytes=100)
    options = TableOptions("t.csv", "")
    preview.write_preview(open_table(path), options, URL, Wanted(rows=1, count=True), limits, shown)
    assert json.loads(shown.getvalue())["row_count"] is None


def workbook_of_one_cell(mib: int) -> bytes:
    """Of a thousandth of that size, as it is compressed."""
    good, bomb, sheet = io.BytesIO(), io.BytesIO(), "xl/worksheets/sheet1.xml"
    openpyxl.Workbook().save(good)
    start = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData><row>'
    with zipfile.ZipFile(good) as parts, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as made:
        for name in parts.namelist():
            if name != sheet:
                made.writestr(name, parts.read(name))
        with made.open(sheet, "w", force_zip64=True) as part:
            part.write(start + b'<c t="inlineStr"><is><t>')
            for _ in range(mib):
                part.write(b"x" * (1 << 20))
    return bomb.getvalue()


@pytest.mark.slow
def test_a_workbook_that_expands_beyond_the_memory_is_called_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was called damaged."""
    monkeypatch.setattr(process, "MEMORY_BYTES", 512 << 20)
    content = workbook_of_one_cell(512)
    assert len(content) < 1 << 20
    specification = lines_spec(TableOptions("t.xlsx", "{{ a }}"), "/v1/chat/completions", 9, 1 << 20, 1 << 20)
    with opened(content) as table, tempfile.TemporaryFile() as lines:
        conversion = Conversion(free_seat(), specification, table, lines=lines)
        with (
            contextlib.closing(conversion),
            pytest.raises(ConversionFailed, match=r"^t\.xlsx: too large to read: .*; save the sheet as CSV$"),
        ):
            wait(conversion, 10 * LIMIT_S)
