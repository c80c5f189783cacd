"""Regular expressions as grammars: whatever such a grammar takes, Python's own engine matches."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import RequestRefused
from tests.engine.answers import Writer, grammar_of


def grammar(regex: str) -> str:
    return grammar_of({"type": "string", "pattern": regex})


# (pattern, strings it takes, strings it does not)
CASES: list[tuple[str, list[str], list[str]]] = [
    ("^abc$", ["abc"], ["ab", "abcd", "xabc"]),
    ("abc", ["abc", "xabcx", "abcabc"], ["ab"]),
    ("^a", ["a", "ab"], ["ba", ""]),
    ("a$", ["a", "ba"], ["ab"]),
    ("", ["", "anything"], []),
    ("^$", [""], ["a"]),
    ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
    ("^(?:a|b)c$", ["ac", "bc"], ["c", "abc"]),
    ("^(foo|ba[rz])?x$", ["foox", "barx", "bazx", "x"], ["bax", "foo"]),
    ("^a*b+c?$", ["b", "aabbc"], ["a", "ac", "bcc"]),
    ("^a{2}b{1,2}c{2,}$", ["aabcc", "aabbccc"], ["abcc", "aabbbcc", "aabc"]),
    ("^a{0}b$", ["b"], ["ab"]),
    ("^a+?b*?$", ["a", "aab"], [""]),
    ("^.{2}$", ["ab", "é😀", 'a"', "a\\"], ["a", "a\n"]),
    ("^[a-c1\\]\\-]+$", ["abc", "1]-"], ["d", ""]),
    ("^[^a-c]$", ["d", "é", '"', "\\"], ["a", ""]),
    ("^[-a]$", ["-", "a"], ["b"]),
    ("^[a-]$", ["-", "a"], ["b"]),
    (r"^\d\D\w\W\s\S$", ["1a_- x"], ["a1_- x", "1a_-xx"]),
    (r"^[\w.]+@[\w.]+$", ["a.b@c.d"], ["@", "a b@c"]),
    (r"^[^\s@]+$", ["ab"], ["a b", "a@b"]),
    (r"^\.\*\/\\\"$", ['.*/\\"'], ["a"]),
    (r"^\x41\u00e9\t$", ["Aé\t"], ["A"]),
    (r"^[\n\t]$", ["\n", "\t"], [" "]),
    ('^"[^"]*"$', ['""', '"a"'], ['"', '"""']),
    ("^[ -~]+$", ["a b", '"', "\\"], ["é", ""]),
    ("^[é-ÿ]$", ["é", "ÿ"], ["e", "Ā"]),
    ("^😀+$", ["😀😀"], ["😁"]),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_what_a_pattern_takes(writer: Writer, case: tuple[str, list[str], list[str]]) -> None:
    regex, valid, invalid = case
    rules = grammar(regex)
    for text in valid:
        assert re.search(regex, text)
        assert writer.takes(rules, json.dumps(text, ensure_ascii=False)), text
    for text in invalid:
        assert not writer.takes(rules, json.dumps(text, ensure_ascii=False)), text


@pytest.mark.parametrize(
    "regex",
    [
        *(
            "(",
            ")",
            "(a",
            "a)",
            "[",
            "[a",
            "*",
            "a**",
            "a{2}{3}",
            "a{,3}",
            "a{3,2}",
            "a{x}",
            "a{2",
            "+a",
            "a|*",
        ),
        *(
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "(?<n>a)",
            "(?P<n>a)",
            "(?i)a",
            r"(a)\1",
            r"\bword\b",
            r"\p{L}",
            r"\A",
            "a\\",
        ),
        *(
            "^*",
            "a^b",
            "a$b",
            "(^a)",
            "[z-a]",
            r"[\d-z]",
            "[]",
            r"\x4",
            r"\uXYZW",
            "(a?)*",
            "(a*)+",
            "(|a){2}",
        ),
        *("a{9999}", r"\ud83d", "a{99999999999999999999}"),
    ],
)
def test_what_is_no_pattern_or_more_than_a_grammar_holds_is_refused(writer: Writer, regex: str) -> None:
    with pytest.raises(RequestRefused, match=r"pattern|llama\.cpp") as refused:
        writer.begin(grammar(regex))
    assert (refused.value.param, refused.value.code) == ("response_format", "invalid_schema")


ATOMS = (
    *(
        "a",
        "b",
        "é",
        "😀",
        '"',
        "\\\\",
        "/",
        " ",
        ".",
        r"\d",
        r"\D",
        r"\w",
        r"\W",
        r"\s",
        r"\S",
        r"\n",
        "[a-f]",
    ),
    *("[^a-f]", r"[^\d]", r"[^\w ]", r"[\W_]", r"[\S]", "[ -~]", '["\\\\]', r"[^\S]", r"[^\W]", "[à-ÿ]"),
)


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda ways: f"({'|'.join(ways)})"),
        st.builds(
            lambda one, times: f"(?:{one}){times}", inner, st.sampled_from(["?", "{1,3}", "{2}", "+", "*"])
        ),
    )


regexes = st.builds(
    lambda begin, body, end: begin + body + end,
    st.sampled_from(["", "^"]),
    st.recursive(st.sampled_from(ATOMS), larger, max_leaves=6),
    st.sampled_from(["", "$"]),
)


@given(regex=regexes, seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_whatever_is_written_matches(writer: Writer, regex: str, seed: int) -> None:
    try:
        constraint_text = writer.write(grammar(regex), random.Random(seed), most=60)
    except RequestRefused:
        return
    if constraint_text is not None:
        text = json.loads(constraint_text)
        assert re.search(regex, text), (regex, text)
