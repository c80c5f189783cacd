"""Frames of a program as rows, and the values of a program as JSON has them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pytest

from tables.base.errors import TableError
from tables.base.values import json_value
from tables.sources.frames import frame_rows

NOON = datetime(2024, 1, 2, 12, 30, 15)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    found = frame_rows(frame)
    assert found is not None
    return [{name: json_value(value) for name, value in row.items()} for row in found]


def test_an_arrow_stream_has_the_rows_of_its_frame() -> None:
    frame = duckdb.sql(
        """SELECT * FROM (VALUES
        (1, 1.5::DOUBLE, 'ä', TRUE, DATE '2024-01-02', TIMESTAMP '2024-01-02 12:30:15', 1.50::DECIMAL(9, 2),
         [{'role': 'user', 'n': 1}], 'ab'::BLOB, 170141183460469231731687303715884105727::HUGEINT),
        (NULL, 'nan'::DOUBLE, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
        ) AS t(n, f, "a word", b, day, moment, price, talk, bytes, huge)"""
    )
    first, second = rows_of(frame)
    assert list(first) == ["n", "f", "a word", "b", "day", "moment", "price", "talk", "bytes", "huge"]
    assert list(first.values())[:6] == [1, 1.5, "ä", True, "2024-01-02", "2024-01-02 12:30:15"]
    assert (first["price"], first["bytes"]) == (1.5, "YWI=")
    assert first["huge"] == "170141183460469231731687303715884105727"
    assert first["talk"] == [{"role": "user", "n": 1}]
    assert set(second.values()) == {None}


def test_a_stream_of_any_length_is_read_as_it_comes() -> None:
    """It would never end."""
    rows = frame_rows(duckdb.sql("SELECT range AS n FROM range(1_000_000_000_000)"))
    assert rows is not None
    assert [row["n"] for row in islice(rows, 5000)] == [*range(5000)]
    rows.close()  # type: ignore[attr-defined]


def test_what_breaks_in_the_middle_is_one_line() -> None:
    frame = duckdb.sql("SELECT CASE WHEN range = 9000 THEN error('boom') ELSE 'x' END AS t FROM range(10000)")
    with pytest.raises(
        TableError, match=r"^the data frame cannot be read as an Arrow stream: [^\n]*boom[^\n]*$"
    ):
        rows_of(frame)


@pytest.mark.parametrize("rows", [["a text"], [{"a": 1}], iter(()), 5, np.array(["a"])])
def test_what_is_no_frame(rows: Any) -> None:
    assert frame_rows(rows) is None


def test_values_are_as_json_tables_have_them() -> None:
    cases: Sequence[tuple[Any, Any]] = [
        (None, None),
        (2**70, 2**70),
        (math.nan, None),
        (Decimal("NaN"), None),
        (Decimal("19.90"), 19.9),
        (Decimal("0.1000000000000000000001"), "0.1000000000000000000001"),
        (NOON, "2024-01-02 12:30:15"),
        (NOON.date(), "2024-01-02"),
        (time(1, 2), "01:02:00"),
        (timedelta(hours=1), "1:00:00"),
        (UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        (b"ab", "YWI="),
        (np.int64(7), 7),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), None),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.datetime64("2024-01-02T12:30:15", "ns"), "2024-01-02 12:30:15"),
        (np.datetime64("NaT"), None),
        (np.timedelta64(3600, "s"), "1:00:00"),
        (np.array([[1.0, math.nan]]), [[1.0, None]]),
        ({1: (date(2024, 1, 2), {"n": np.int8(1)})}, {"1": ["2024-01-02", {"n": 1}]}),
    ]
    for value, expected in cases:
        assert json.dumps(json_value(value)) == json.dumps(expected), repr(value)


@pytest.mark.parametrize("value", [object(), 1j, math.inf, [-math.inf], np.longdouble(1)])
def test_what_json_cannot_hold_is_one_line_with_the_next_step(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^[^\n]*: (make|replace) it[^\n]*$"):
        json_value(value)


def test_pandas() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None], dtype="Int64"),
            "f": [1.5, math.nan],
            "text": ["a", None],
            "at": [pd.Timestamp(NOON), pd.NaT],
            "day": [NOON.date(), None],
            "took": [pd.Timedelta(hours=1), pd.NaT],
            "price": [Decimal("1.50"), None],
            "kind": pd.Categorical(["x", None]),
            "talk": [[{"role": "user", "n": np.int64(1)}], None],
            5: [np.array([1, 2]), None],
        },
        index=["first", "second"],
    )
    first, second = rows_of(frame)
    talk = [{"role": "user", "n": 1}]
    values = [1, 1.5, "a", "2024-01-02 12:30:15", "2024-01-02", "0 days 01:00:00", 1.5, "x", talk, [1, 2]]
    assert list(first.values()) == values
    assert list(first) == ["n", "f", "text", "at", "day", "took", "price", "kind", "talk", "5"]
    assert set(second.values()) == {None}
    with pytest.raises(TableError, match="2 columns have the name 'a'"):
        rows_of(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_polars() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "n": [1, None],
            "f": [1.5, math.nan],
            "at": [NOON, None],
            "day": [NOON.date(), None],
            "price": [Decimal("1.50"), None],
            "kind": pl.Series(["x", None], dtype=pl.Categorical),
            "talk": [[{"role": "user", "n": 1}], None],
        }
    )
    first, second = rows_of(frame)
    talk = [{"role": "user", "n": 1}]
    assert list(first.values()) == [1, 1.5, "2024-01-02 12:30:15", "2024-01-02", 1.5, "x", talk]
    assert set(second.values()) == {None}
    assert frame_rows(pl.Series(["a text"])) is None
    with pytest.raises(TableError, match=r"a LazyFrame has no rows yet: call collect\(\) on it"):
        frame_rows(frame.lazy())
    with pytest.raises(TableError, match="column 'o' holds Python's objects: make it text or a number"):
        rows_of(pl.DataFrame({"o": pl.Series([UUID(int=0)], dtype=pl.Object)}))
