"""Chunks and segments: what is written once is passed on as it stands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from common.json_text import compact
from tasks.batches import segments as segments_module
from tasks.batches.segments import (
    INVALID,
    UNSENT,
    Entry,
    merged,
    merging,
    new_invalid_name,
    new_segment_name,
    read_chunk,
    segment_name,
    write_chunk,
    write_segment,
)
from tasks.files.base import FileStore
from tasks.records.packed_line import Head, Line, head, unpacked

ANSWER = {
    "custom_id": "a,b]}",
    "response": {"body": {"x": [1e16, -0.0, 1e-7, 0.1, True, None, "}]\n,é\u2028"]}},
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def dump(value: object) -> bytes:
    return compact(value).encode() + b"\n"


def result(number: int, failed: bool, entry: object) -> str:
    return compact([number, failed, entry]) + "\n"


def all_of(files: FileStore, batch_id: str, names: list[str]) -> list[Entry]:
    return list(merged(files, batch_id, names))


def test_entries_come_in_the_order_of_their_lines_as_they_were_written(files: FileStore) -> None:
    names = [new_segment_name(number) for number in range(2)]
    entries = {number: {**ANSWER, "n": number} for number in range(1, 13)}
    results = [result(number, number % 3 == 0, entry) for number, entry in entries.items()]
    write_segment(files, "b", names[0], results[8:3:-1])
    write_segment(files, "b", names[1], results[9:])
    names.append(new_invalid_name())
    write_segment(files, "b", names[-1], results[:2])
    for name in (new_invalid_name(), INVALID):
        write_segment(files, "b", name, [result(98, True, {"of": "a late reader"})])
    write_segment(files, "b", UNSENT, results[2:4])
    write_segment(files, "b", new_segment_name(2), [result(99, False, {"of": "a late leader"})])
    assert all_of(files, "b", names) == [Entry(n % 3 == 0, dump(entry)) for n, entry in entries.items()]


def test_refused_lines_count_as_an_earlier_release_wrote_them(files: FileStore) -> None:
    write_segment(files, "b", INVALID, [result(1, True, {"of": "an earlier release"})])
    assert all_of(files, "b", []) == [Entry(True, dump({"of": "an earlier release"}))]


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.dictionaries(texts, values, max_size=3)), max_size=4))
def test_any_entry_stays_what_it_is(files: FileStore, entries: list[tuple[bool, dict[str, Any]]]) -> None:
    name = new_segment_name(0)
    write_segment(files, "b", name, [result(n, failed, entry) for n, (failed, entry) in enumerate(entries)])
    assert all_of(files, "b", [name]) == [Entry(failed, dump(entry)) for failed, entry in entries]


def test_many_segments_are_merged_in_groups(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "FAN_IN", 3)
    entries = [{**ANSWER, "n": number} for number in range(40)]
    results = [result(number, number % 2 == 0, entry) for number, entry in enumerate(entries)]
    names = [new_segment_name(number) for number in range(8)]
    for start, name in enumerate(names):
        write_segment(files, "b", name, results[start::8])
    steps = list(merging(files, "b", names))
    assert steps[:40] == [None] * 40, "one step for each line of each group"
    assert steps[40:] == [Entry(n % 2 == 0, dump(entry)) for n, entry in enumerate(entries)]


@pytest.mark.parametrize("fan_in", [1, 64])
@pytest.mark.parametrize(
    "damaged",
    [
        b"{",
        b"\n",
        b"null\n",
        b'[1,false,{"a":1}]',
        b'[1,false,{"a":1}\n',
        b'[1,false,"a"]\n',
        b"[x,true,{}]\n",
    ],
)
def test_a_damaged_segment_is_no_result(
    files: FileStore, damaged: bytes, fan_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_module, "FAN_IN", fan_in)
    write_segment(files, "b", "good", [result(0, False, {})])
    with files.open_new(segment_name("b", "bad")) as out:
        out.write(damaged)
    with pytest.raises(ValueError, match="damaged"):
        all_of(files, "b", ["good", "bad"])


REQUESTS = st.fixed_dictionaries({"prompt": texts, "max_tokens": st.integers(1, 10**9)}).map(compact)


@given(st.integers(1, 10**10), texts, texts, REQUESTS, st.integers(0, 10**10))
def test_a_packed_line_is_what_it_was(
    number: int, custom_id: str, model: str, request: str, group: int
) -> None:
    line = Line(number, custom_id, model, request, 5, prefix="Answer in one word. ")
    packed = line.packed(group)
    assert (packed.count(b"\t"), packed.count(b"\n"), packed[-1:]) == (5, 1, b"\n")
    assert head(packed) == Head(number, 5, group, model)
    assert unpacked(packed) == Line(number, custom_id, model, request, 5)


def test_a_chunk_gives_its_lines_back(files: FileStore) -> None:
    lines = [Line(number, "\t\n", "ü\u2028", '{"prompt":"\\t","max_tokens":5}', 5) for number in (7, 8)]
    packed = [line.packed(7) for line in lines]
    write_chunk(files, "b", 0, packed)
    assert read_chunk(files, "b", 0) == packed


def test_a_chunk_of_an_earlier_release_is_read(files: FileStore) -> None:
    request = '{"prompt":"p","max_tokens":5}'
    write_chunk(files, "b", 0, [dump([7, "a", "m", request, "p"]), dump([8, "b", "m", request, "p", 5])])
    found = read_chunk(files, "b", 0)
    assert [unpacked(line) for line in found] == [
        Line(7, "a", "m", request, 5),
        Line(8, "b", "m", request, 5),
    ]
    assert [head(line).group for line in found] == [7, 8], "each by itself"
