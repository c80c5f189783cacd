"""Conversions in child processes: their limits, and that nothing of them stays."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tables.conversion import process
from tables.conversion.options import TableOptions
from tables.conversion.process import Conversion, ConversionFailed, Seats, lines_spec, output_spec

URL = "/v1/chat/completions"
LIMIT_S = 60.0

pytestmark = pytest.mark.slow


@functools.cache
def slow() -> bytes:
    """A table that takes seconds to read, and has no row."""
    return gzip.compress(b"a\n" + b"\n" * 100_000_000, 1)


@contextlib.contextmanager
def opened(content: bytes) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file


def wait(conversion: Conversion) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not conversion.has_ended(0.05):
        assert time.monotonic() < give_up


def converted(content: bytes, name: str = "t.csv", **changes: Any) -> bytes:
    """The lines; changes: of the specification."""
    specification = lines_spec(TableOptions(name, "{{ a }}"), URL, 1000, 1 << 20, 1 << 20) | changes
    with opened(content) as table, opened(b"") as lines:
        conversion = Conversion(specification, table, lines=lines)
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
        with contextlib.closing(Conversion(specification, table, results=[results])) as conversion:
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
        with contextlib.closing(Conversion(specification, table, results=[results])) as conversion:
            wait(conversion)
            text = (conversion.folder / "out.csv").read_text()
    assert text == "a,answer,finish_reason,error,prompt_tokens,completion_tokens\nx,'=1+1,stop,,3,2\n"


def test_values_that_were_cut_are_counted() -> None:
    failed = {"code": "boom", "message": "x" * 40_000}
    result = {"id": "batch_req_1-1", "error": failed, "response": None}
    with opened(b"a\nx\n") as table, opened(json.dumps(result).encode() + b"\n") as results:
        specification = output_spec(TableOptions("t.csv", "{{ a }}"), "out.xlsx")
        with contextlib.closing(Conversion(specification, table, results=[results])) as conversion:
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
        conversion = Conversion(specification, table, results=[results])
        with (
            contextlib.closing(conversion),
            pytest.raises(ConversionFailed, match="more than 500,000 bytes on the disk") as refused,
        ):
            wait(conversion)
    assert refused.value.code == "table_too_large"


def test_a_full_disk_is_no_fault_of_the_table() -> None:
    specification = lines_spec(TableOptions("t.csv", "{{ a }}"), URL, 1000, 1 << 20, 1 << 20)
    with opened(b"a\nx\n") as table, Path("/dev/full").open("r+b", buffering=0) as lines:
        conversion = Conversion(specification, table, lines=lines)
        with (
            contextlib.closing(conversion),
            pytest.raises(ConversionFailed, match="temporary files: No space left") as refused,
        ):
            wait(conversion)
    assert refused.value.storage


def test_it_can_be_ended_at_any_time() -> None:
    specification = lines_spec(TableOptions("t.csv.gz", "{{ a }}"), URL, 1000, 1 << 20, 1 << 20)
    with opened(slow()) as table, opened(b"") as lines:
        conversion = Conversion(specification, table, lines=lines)
        assert not conversion.has_ended(0.2)
        conversion.close()
        assert not Path(conversion.folder).exists()


def test_seats_are_few_and_one_for_each() -> None:
    seats = Seats(2)
    assert seats.take("a")
    assert not seats.take("a")
    assert seats.take("b")
    assert not seats.take("c")
    seats.leave("a")
    assert seats.take("c")
    assert not seats.take("a")
