"""Text out of token bytes: every split of every text must read the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.text.detokenizer import TextReader, TextStream

MIXED = "é€😀"  # characters of two, three and four bytes


def pieces(raw: bytes, *cuts: int) -> list[bytes]:
    """The bytes cut at these offsets."""
    edges = [0, *sorted(cuts), len(raw)]
    return [raw[a:b] for a, b in pairwise(edges)]


def stream(tokens: list[bytes], *stop: str) -> tuple[str, int | None]:
    """(text, index of the token that completed a stop string) of tokens pushed until a stop string."""
    text = TextStream(stop)
    for i, token in enumerate(tokens):
        if text.push(token):
            return text.text, i
    return text.text, None


def naive(tokens: list[bytes], *stop: str) -> tuple[str, int | None]:
    """The same by decoding everything anew after each token."""
    whole = ""
    for i in range(len(tokens)):
        raw = b"".join(tokens[: i + 1])
        whole = raw[: len(raw) - unfinished(raw)].decode("utf-8", "replace")
        found = [whole.index(s) for s in stop if s in whole]
        if found:
            return whole[: min(found)], i
    return whole, None


def unfinished(raw: bytes) -> int:
    """Bytes at the end that may still become a character: they fail at the end, not at a bad byte."""
    for n in range(1, min(3, len(raw)) + 1):
        try:
            raw[-n:].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return n
    return 0


def splits(raw: bytes, parts: int) -> Iterator[list[bytes]]:
    for cuts in combinations(range(1, len(raw)), parts - 1):
        yield pieces(raw, *cuts)


@pytest.mark.parametrize("text", ["é", "€", "😀", MIXED, f"a{MIXED}b", "👩‍👩‍👧"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_character_may_be_split_at_every_offset(text: str, parts: int) -> None:
    for tokens in splits(text.encode(), parts):
        assert stream(tokens) == (text, None), tokens


@pytest.mark.parametrize("text", ["é", "€", "😀"])
def test_an_unfinished_character_is_not_shown(text: str) -> None:
    raw = text.encode()
    for cut in range(1, len(raw)):
        assert stream([b"ab", raw[:cut]]) == ("ab", None)
        assert stream([b"ab", *(bytes([b]) for b in raw[:cut])]) == ("ab", None)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\xffb", "a�b"),
        (b"a\x80b", "a�b"),
        (b"\xc3(", "�("),  # a lead byte without its continuation
        (b"\xe2\x82x", "�x"),
        (b"\xf0\x9f\x98.", "�."),
        (b"\xc0\xaf", "��"),  # overlong
        (b"\xed\xa0\x80", "���"),  # a surrogate
        (b"\xc3\xa9\xff\xe2\x82\xac", "é�€"),
    ],
)
def test_bytes_that_can_never_be_a_character_are_replaced(raw: bytes, text: str) -> None:
    for parts in range(1, len(raw) + 1):
        for tokens in splits(raw, parts):
            assert stream(tokens) == (text, None), tokens


@pytest.mark.parametrize("stop", ["END", "é€", "😀", "\n\n", "€"])
def test_a_stop_string_is_found_at_every_split(stop: str) -> None:
    raw = f"ab {stop} tail".encode()
    end = len(f"ab {stop}".encode())
    for parts in (1, 2, 3, 4):
        for tokens in splits(raw, parts):
            text, at = stream(tokens, stop)
            assert text == "ab ", tokens
            assert at is not None
            assert len(b"".join(tokens[:at])) < end <= len(b"".join(tokens[: at + 1])), "found too late"


def test_bytewise_tokens() -> None:
    raw = f"{MIXED}<{MIXED}>{MIXED}".encode()
    text, at = stream([bytes([b]) for b in raw], f"{MIXED}>")
    assert text == f"{MIXED}<"
    assert at == len(f"{MIXED}<{MIXED}>".encode()) - 1


def test_the_earliest_of_several_stops_wins() -> None:
    assert stream([b"one two three"], "three", "two") == ("one ", 0)
    assert stream([b"one two three"], "two", "three") == ("one ", 0)
    assert stream([b"one t", b"wo three"], "e three", "two") == ("one ", 1)


def test_stops_that_begin_alike() -> None:
    assert stream([b"xabc"], "abcd", "abc") == ("x", 0)
    assert stream([b"xab", b"cd"], "abcd", "ab") == ("x", 0)
    assert stream([b"xab", b"cd"], "abcd", "abx") == ("x", 1)


def test_a_stop_that_restarts_inside_itself() -> None:
    assert stream([b"a", b"a", b"a", b"b"], "aab") == ("a", 3)
    assert stream([b"aba", b"bac"], "abac") == ("ab", 1)


def test_what_only_begins_like_a_stop_is_text() -> None:
    assert stream([b"one EN", b"D", b"ING"], "ENDED") == ("one ENDING", None)


def test_a_token_of_no_bytes_changes_nothing() -> None:
    assert stream([b"a", b"", b"b", b""], "ab") == ("", 2)


def test_the_text_so_far_is_there_after_every_token() -> None:
    text = TextStream(("STOP",))
    seen = []
    for token in (b"a\xe2", b"\x82", b"\xac", b"b ST", b"OPc"):
        text.push(token)
        seen.append(text.text)
    assert seen == ["a", "a", "a€", "a€b ST", "a€b "]


@example(raw=b"\xed\xa0", cuts=[], stop=[])
@example(raw=b"a\xed\xbf\xbfb", cuts=[1, 2, 3, 4], stop=[])
@example(raw=b"\xed\x9f\xbf", cuts=[1, 2], stop=[])
@given(
    raw=st.one_of(
        st.text(alphabet="ab€😀é\n", max_size=24).map(str.encode),
        st.text(max_size=12).map(lambda s: s.encode("utf-8", "replace")),
        st.binary(max_size=16),
        st.text(alphabet="ab", max_size=24).map(str.encode),
    ),
    cuts=st.lists(st.integers(0, 60), max_size=12),
    stop=st.lists(st.text(alphabet="ab€😀é\n\ufffd", min_size=1, max_size=4), max_size=3),
)
@settings(max_examples=600, deadline=None)
def test_any_split_of_any_bytes_reads_as_the_whole(raw: bytes, cuts: list[int], stop: list[str]) -> None:
    tokens = pieces(raw, *(min(cut, len(raw)) for cut in cuts))
    assert stream(tokens, *stop) == naive(tokens, *stop)


# Heard piece by piece


def told(tokens: list[bytes], *stop: str, every: int = 1) -> tuple[list[str], list[int], str]:
    """(texts, tokens whole with each, the whole text) of a reader asked after every so many tokens."""
    stream = TextStream(stop)
    reader = TextReader(stream)
    texts, counts = [], []
    for i, token in enumerate(tokens):
        ended = stream.push(token)
        if i % every == 0 and not ended:
            text, count = reader.take()
            assert text or not count, "a token is told with text"
            texts.append(text)
            counts.append(count)
        if ended:
            break
    text, count = reader.take(final=True)
    assert sum(counts) + count == len(stream.parts), "each token is told once"
    return [*texts, text], [*counts, count], stream.text


@pytest.mark.parametrize("text", ["é", "€", "😀", MIXED, f"a{MIXED}b"])
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_what_is_told_is_the_text_at_every_split(text: str, parts: int) -> None:
    for tokens in splits(text.encode(), parts):
        texts, _, whole = told(tokens)
        assert "".join(texts) == whole == text


@pytest.mark.parametrize("stop", ["END", "é€", "😀", "\n\n", "€"])
def test_nothing_of_a_stop_string_is_ever_told(stop: str) -> None:
    raw = f"ab {stop} tail".encode()
    for parts in (1, 2, 3, 4):
        for tokens in splits(raw, parts):
            texts, _, whole = told(tokens, stop)
            assert "".join(texts) == whole == "ab ", tokens


def test_the_beginning_of_a_stop_string_waits_until_it_is_none() -> None:
    tokens = [b"one E", b"N", b"D", b"ING", b" E"]
    texts, counts, _ = told(tokens, "ENDED")
    assert texts == ["one ", "", "", "ENDING", " ", "E"]
    assert counts == [0, 0, 0, 4, 0, 1]


def test_the_longest_beginning_waits() -> None:
    assert told([b"xaab", b"c"], "aabd", "bz")[0] == ["x", "aabc", ""]
    assert told([b"aa", b"ab"], "aab")[0] == ["", "a"], "it begins one character later"


def test_a_token_is_told_with_its_last_character() -> None:
    raw = "😀".encode()
    texts, counts, _ = told([b"a", raw[:1], raw[1:3], raw[3:] + b"b"])
    assert texts == ["a", "", "", "😀b", ""]
    assert counts == [1, 0, 0, 3, 0]


def test_a_character_that_is_never_finished_is_not_told() -> None:
    texts, counts, whole = told([b"ab", "😀".encode()[:2]])
    assert (texts, counts, whole) == (["ab", "", ""], [1, 0, 1], "ab")


def test_a_late_reader_hears_everything() -> None:
    stream = TextStream(("STOP",))
    for token in (b"one ", b"two S", b"TO"):
        stream.push(token)
    reader = TextReader(stream)
    assert reader.take() == ("one two ", 1)
    assert reader.take() == ("", 0)
    stream.push(b"P gone")
    assert reader.take(final=True) == ("", 3)
    assert reader.take(final=True) == ("", 0)


@given(
    raw=st.one_of(
        st.text(alphabet="ab€😀é\n", max_size=24).map(str.encode),
        st.binary(max_size=16),
        st.text(alphabet="ab", max_size=24).map(str.encode),
    ),
    cuts=st.lists(st.integers(0, 60), max_size=12),
    stop=st.lists(st.text(alphabet="ab€😀é\n\ufffd", min_size=1, max_size=4), max_size=3),
    every=st.integers(1, 4),
)
@settings(max_examples=600, deadline=None)
def test_what_is_told_is_certain_and_joins_to_the_text(
    raw: bytes, cuts: list[int], stop: list[str], every: int
) -> None:
    tokens = pieces(raw, *(min(cut, len(raw)) for cut in cuts))
    texts, _, whole = told(tokens, *stop, every=every)
    assert "".join(texts) == whole == stream(tokens, *stop)[0]


@given(
    raw=st.text(alphabet="ab", max_size=12).map(str.encode),
    stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=2),
)
@settings(max_examples=300, deadline=None)
def test_no_character_waits_that_no_stop_string_could_take(raw: bytes, stop: list[str]) -> None:
    """What is held back is the longest end of the text with which some stop string begins."""
    stream = TextStream(stop)
    reader = TextReader(stream)
    said = ""
    for i in range(len(raw)):
        if stream.push(raw[i : i + 1]):
            return
        said += reader.take()[0]
        text = raw[: i + 1].decode()
        held = text[len(said) :]
        ends = [text[n:] for n in range(len(text)) if any(s.startswith(text[n:]) for s in stop)]
        assert held == max(ends, key=len, default="")
