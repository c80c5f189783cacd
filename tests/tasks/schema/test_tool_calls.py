"""Tool calls in a model's text: found whole or piece by piece, and nothing else of the text lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.schema.tool_calls import Function, ToolCallSplitter

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
FUNCTION = {"name": "f", "arguments": '{"x": "é"}'}


def split(*pieces: str) -> list[str | Function]:
    """Content and calls, neighbouring content as one."""
    splitter = ToolCallSplitter()
    found = [part for piece in pieces for part in splitter.feed(piece)] + splitter.feed("", final=True)
    joined: list[str | Function] = []
    for part in found:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" hello\n", [" hello\n"]),
        (CALL, [FUNCTION]),
        (f"Sure. \n{CALL}\n", ["Sure.", FUNCTION]),
        (f"a {CALL}\n{CALL} b ", ["a", FUNCTION, FUNCTION, "b "]),
        ('<tool_call>{"name":"f"}</tool_call>', [{"name": "f", "arguments": "{}"}]),
        ('<tool_call>{"name":"f","arguments":"{}"}</tool_call>', [{"name": "f", "arguments": "{}"}]),
        (f"x {CALL[:-3]}", [f"x {CALL[:-3]}"]),
        ("x <tool_call>no JSON</tool_call> y", ["x <tool_call>no JSON</tool_call> y"]),
        ("<tool_call>[1]</tool_call>", ["<tool_call>[1]</tool_call>"]),
        ('<tool_call>{"name": 5}</tool_call>', ['<tool_call>{"name": 5}</tool_call>']),
        ("a <tool_c", ["a <tool_c"]),
        ("1 < 2 <tool> </tool_call>", ["1 < 2 <tool> </tool_call>"]),
    ],
)
def test_content_and_calls(text: str, expected: list[str | Function]) -> None:
    assert split(text) == expected
    assert split(*text) == expected, "one character at a time"


@given(
    st.lists(
        st.sampled_from([CALL, "<tool_call>", "</tool_call>", "{}", " ", "\n", "a", "<", "é"]), max_size=9
    ),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_it_does_not_matter_where_the_text_is_cut(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert split(*pieces) == split(text)


def test_plain_text_is_not_kept_waiting() -> None:
    splitter = ToolCallSplitter()
    assert splitter.feed("Hello there") == ["Hello there"]
    assert splitter.feed(" <b") == [" <b"]
    assert splitter.feed(" <") == []
    assert splitter.feed("3") == [" <3"]


def test_a_call_that_is_cut_off_after_another_is_no_text() -> None:
    whole = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    function = {"name": "f", "arguments": "{}"}
    assert split(f"{whole}\n{whole[:-5]}") == [function]
    assert split(f"{whole} but {whole[:-5]}") == [function, f"but {whole[:-5]}"]
