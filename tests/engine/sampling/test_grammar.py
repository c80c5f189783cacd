"""Which tokens a grammar allows: characters, control tokens, the end, numbers and blanks without end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import DecodeFailed, RequestRefused, response_grammar
from engine.llama.model import Model, default_model_path
from engine.sampling.grammar import LONGEST_NUMBER, MOST_AHEAD, GrammarConstraint, Grammars
from tests.engine.helpers.answers import END, FIRST_BYTE, Writer, grammar_of
from tests.engine.helpers.tiny import write_tiny_gguf

STRING = grammar_of({"type": "string"})
NUMBERS = grammar_of({"type": "array", "items": {"type": "number"}})
OBJECT = grammar_of({"type": "object"})


def after(writer: Writer, grammar: str, raw: bytes) -> GrammarConstraint:
    constraint = writer.begin(grammar)
    for byte in raw:
        assert constraint.allowed()[FIRST_BYTE + byte], raw
        constraint.accept(FIRST_BYTE + byte)
    return constraint


def next_bytes(constraint: GrammarConstraint) -> set[int]:
    return set(np.flatnonzero(constraint.allowed()[FIRST_BYTE : FIRST_BYTE + 256]).tolist())


def test_the_end_may_come_only_where_the_answer_is_whole(writer: Writer) -> None:
    text = b'{"a": [1]}'
    for cut in range(len(text)):
        assert not after(writer, OBJECT, text[:cut]).allowed()[END]
    whole = after(writer, OBJECT, text)
    for _ in range(3):
        assert np.flatnonzero(whole.allowed()).tolist() == [END], "a draft may go on after the end"
        whole.accept(END)


def test_what_is_forced_is_all_that_may_come(writer: Writer) -> None:
    """The text up to the next choice, from any place in it; none where there is a choice already."""
    schema = {"type": "object", "properties": {"name": {"enum": ["abc", "abd"]}}, "required": ["name"]}
    grammar = grammar_of(schema)
    forced = b'{"name": "ab'
    for done in range(len(forced)):
        constraint = after(writer, grammar, forced[:done])
        assert constraint.forced == forced[done:]
        assert next_bytes(constraint) == {forced[done]}
    assert after(writer, grammar, forced).forced == b""
    assert after(writer, grammar, forced + b"c").forced == b'"}'
    assert after(writer, grammar, forced + b'c"}').forced == b""


@pytest.mark.parametrize(
    "schema",
    [{"enum": ["x" * MOST_AHEAD, "y"]}, {"type": "string", "pattern": "^x{1000000}$"}, {"const": "xx"}],
)
def test_an_answer_goes_on_as_if_nobody_had_asked_what_is_forced(writer: Writer, schema: object) -> None:
    """A long constant is not asked of; with the pattern asking comes to a limit."""
    asked, not_asked = writer.begin(grammar_of(schema)), writer.begin(grammar_of(schema))
    forced = []
    for byte in b'"xx':
        forced.append(asked.forced)
        assert (asked.allowed() == not_asked.allowed()).all()
        asked.accept(FIRST_BYTE + byte)
        not_asked.accept(FIRST_BYTE + byte)
    assert asked.forced == (b'"' if schema == {"const": "xx"} else b"")
    assert any(forced) == (schema != {"enum": ["x" * MOST_AHEAD, "y"]})


def test_an_answer_is_complete_where_it_may_end(writer: Writer) -> None:
    text = b'{"a": [1]}'
    for cut in range(len(text)):
        assert not after(writer, OBJECT, text[:cut]).complete
    whole = after(writer, OBJECT, text)
    for _ in range(3):
        assert whole.complete
        whole.accept(END)
    assert after(writer, grammar_of({"type": "integer"}), b"12").complete


def test_an_answer_may_end_where_it_might_go_on(writer: Writer) -> None:
    constraint = after(writer, grammar_of({"type": "integer"}), b"12")
    assert constraint.allowed()[[END, FIRST_BYTE + ord("3")]].all()
    constraint.accept(END)
    assert np.flatnonzero(constraint.allowed()).tolist() == [END]


def test_control_tokens_are_no_text(writer: Writer) -> None:
    """Their names would fit into a string, but they write nothing."""
    inside = after(writer, STRING, b'"')
    assert not inside.allowed()[:FIRST_BYTE].any()
    assert writer.model.piece(0, special=True) == b"<unk>"
    assert writer.model.piece(1, special=True) == b"<s>"


def test_the_default_models_control_tokens_end_an_answer_or_are_no_text() -> None:
    model = Model(default_model_path())
    constraint = Grammars(model).begin(STRING)
    assert constraint is not None
    silent = [token for token in range(model.vocab_size) if not model.piece(token)]
    ends = [token for token in silent if model.ends_generation(token)]
    assert 1 < len(ends) < len(silent)
    for token in model.tokenize('"hello', add_bos=False, special=False):
        assert constraint.allowed()[token]
        constraint.accept(int(token))
    assert not constraint.allowed()[silent].any()
    [quote] = model.tokenize('"', add_bos=False, special=False)
    constraint.accept(int(quote))
    for end in ends:
        assert np.flatnonzero(constraint.allowed()).tolist() == ends
        constraint.accept(end)


def test_an_end_that_has_a_text_is_no_text(tmp_path: Path) -> None:
    """Within an answer it would end it, unfinished."""
    pair = FIRST_BYTE + 256
    writer = Writer(Model(write_tiny_gguf(tmp_path / "tiny.gguf", end=pair)))
    assert writer.model.piece(pair) == b"aa"
    assert not after(writer, STRING, b'"').allowed()[pair]
    assert after(writer, STRING, b'"aa"').allowed()[pair]


def utf8_prefixes() -> Iterator[bytes]:
    """The beginnings of all characters beyond ASCII, by the definition."""
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x110000)):
        raw = chr(code).encode()
        yield from (raw[:n] for n in range(1, len(raw)))


def test_bytes_are_taken_if_they_may_become_a_character(writer: Writer) -> None:
    prefixes = set(utf8_prefixes())
    firsts = {byte for byte in next_bytes(after(writer, STRING, b'"')) if byte >= 0x80}
    assert firsts == {p[0] for p in prefixes if len(p) == 1}
    for first in sorted(firsts):
        seconds = next_bytes(after(writer, STRING, b'"' + bytes([first])))
        if first < 0xE0:
            assert seconds == set(range(0x80, 0xC0))
            continue
        assert seconds == {p[1] for p in prefixes if len(p) == 2 and p[0] == first}


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_text_may_be_written_byte_by_byte(writer: Writer, text: str) -> None:
    assert writer.takes(STRING, '"' + text.replace("\\", "").replace('"', "") + '"')


def test_a_control_character_is_written_as_an_escape(writer: Writer) -> None:
    assert not any(byte < 0x20 for byte in next_bytes(after(writer, STRING, b'"')))
    assert writer.takes(STRING, r'"\u0000\n"')


# Without end


def test_blanks_stand_only_where_the_one_form_has_them(writer: Writer) -> None:
    """A model that may not write what it likes would otherwise write them for ever."""
    assert next_bytes(after(writer, OBJECT, b"{")) == set(b'"}')
    for raw in (b'{"a":', b'{"a": 1,'):
        assert next_bytes(after(writer, OBJECT, raw)) == set(b" ")
    for raw in (b"", b'{"a"', b'{"a": ', b'{"a": 1', b'{"a": 1, ', b'{"a": 1}'):
        assert not next_bytes(after(writer, OBJECT, raw)) & set(b" \t\r\n"), raw


@pytest.mark.parametrize("begins", [b"1", b"-0.3", b"1e+"])
def test_numbers_come_to_an_end(writer: Writer, begins: bytes) -> None:
    long = begins + b"3" * (LONGEST_NUMBER - len(begins))
    before = next_bytes(after(writer, NUMBERS, b"[7, " + long[:-1]))
    assert before >= set(b"0123456789,]")
    assert next_bytes(after(writer, NUMBERS, b"[7, " + long)) == set(b",]")
    alone = after(writer, grammar_of({"type": "number"}), long)
    assert np.flatnonzero(alone.allowed()).tolist() == [END]


def test_a_long_number_goes_on_where_nothing_else_may_come(writer: Writer) -> None:
    assert next_bytes(after(writer, "start: /10{50}/", b"1" + b"0" * 40)) == set(b"0")


def test_digits_in_a_string_are_no_number(writer: Writer) -> None:
    for text in (b'"' + b"1" * 60, rb'"\\\"' + b"1" * 60, b'["a", "' + b"1" * 60):
        grammar = grammar_of({}) if text[:1] == b"[" else STRING
        assert ord("1") in next_bytes(after(writer, grammar, text))
    after_string = after(writer, grammar_of({}), rb'["1\"", ' + b"1" * LONGEST_NUMBER)
    assert ord("1") not in next_bytes(after_string)


# Failures


def test_what_is_no_grammar_is_refused(writer: Writer) -> None:
    for grammar in ("root ::= [a]", "no grammar at all", "other: /a/", "start: other", ""):
        with pytest.raises(RequestRefused) as refused:
            writer.begin(grammar)
        assert (refused.value.param, refused.value.code) == ("response_format", "invalid_schema")


def test_a_token_that_is_not_allowed_ends_the_request(writer: Writer) -> None:
    constraint = after(writer, STRING, b'"a')
    with pytest.raises(DecodeFailed):
        constraint.accept(FIRST_BYTE + ord("\n"))
    with pytest.raises(DecodeFailed):
        constraint.allowed()


def test_a_step_that_takes_too_long_ends_the_request(writer: Writer) -> None:
    grammar = grammar_of({"type": "string", "pattern": "^" + "a?" * 900 + "$"})
    with pytest.raises(DecodeFailed) as failed:
        after(writer, grammar, b'"' + b"a" * 900)
    assert failed.value.code == "grammar_too_complex"
    assert "\n" not in failed.value.message


def test_a_character_that_no_token_writes_is_a_dead_end(tmp_path: Path) -> None:
    writer = Writer(Model(write_tiny_gguf(tmp_path / "tiny.gguf", without=b"x")))
    constraint = after(writer, 'start: "ax"', b"a")
    with pytest.raises(DecodeFailed) as failed:
        constraint.allowed()
    assert failed.value.code == "grammar_dead_end"
    with pytest.raises(RequestRefused, match="nothing satisfies"):
        writer.begin('start: "x"')


def test_a_matcher_goes_with_its_constraint(tiny_gguf: str) -> None:
    grammars = Grammars(Model(tiny_gguf))
    constraint = grammars.begin(response_grammar({"type": "json_object"}))
    assert constraint is not None
    gone = weakref.ref(constraint)
    del constraint
    gc.collect()
    assert gone() is None
