"""The Range header against a plain reading of it, and whatever else may stand there."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.http.byte_range import byte_range
from api.http.errors import RangeNotSatisfiable

SIZES = st.integers(0, 300)
PLACES = st.integers(0, 350)
DIGITS = st.integers(0, 10**30).map(str)


def asked(header: str | None, size: int) -> bytes | None:
    """The bytes that this header asks for; None for an answer of 416."""
    content = bytes(n % 256 for n in range(size))
    try:
        span = byte_range(header, size)
    except RangeNotSatisfiable:
        return None
    return content if span is None else content[span.start : span.stop]


@given(SIZES, PLACES, PLACES)
def test_from_to(size: int, first: int, last: int) -> None:
    content = bytes(n % 256 for n in range(size))
    expected = content[first : last + 1] or None
    if last < first:
        expected = content  # no valid range: ignored
    assert asked(f"bytes={first}-{last}", size) == expected


@given(SIZES, PLACES)
def test_from_and_the_last_so_many(size: int, number: int) -> None:
    content = bytes(n % 256 for n in range(size))
    assert asked(f"bytes={number}-", size) == (content[number:] or None)
    assert asked(f"bytes=-{number}", size) == ((content[-number:] if number else b"") or None)


@given(SIZES, st.text() | st.from_regex(r"bytes ?= ?[0-9]*-[0-9]*(,[0-9]*-[0-9]*)*"))
@example(10, "bytes=-")
@example(10, "bytes=0-" + "9" * 5000)
@example(10, "bytes=" + "0" * 5000 + "1-2")
def test_any_text_has_an_answer(size: int, header: str) -> None:
    try:
        span = byte_range(header, size)
    except RangeNotSatisfiable:
        return
    assert span is None or 0 <= span.start < span.stop <= size


IGNORED = [
    *(None, "", "bytes", "bytes=", "bytes=-", "bytes=5", "bytes=5-2", "bytes=a-b", "bytes=0-1,4-5"),
    *("bytes=+1-2", "bytes=1--2", "lines=0-1", "bytes=0x1-2", "bytes=\u0661-\u0662", "bytes=1-2\n"),
]


@pytest.mark.parametrize("header", IGNORED)
def test_what_is_no_single_range_is_ignored(header: str | None) -> None:
    assert byte_range(header, 10) is None


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-0", range(1)),
        ("bytes=9-", range(9, 10)),
        ("Bytes = 2-4 ", range(2, 5)),
        ("bytes=-99", range(10)),
        ("bytes=0-" + "9" * 40, range(10)),
        ("bytes=-" + "9" * 40, range(10)),
        ("bytes=0000000000000000000001-2", range(1, 3)),
    ],
)
def test_spans(header: str, span: range) -> None:
    assert byte_range(header, 10) == span
