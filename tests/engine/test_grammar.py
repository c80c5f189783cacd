"""llama.cpp's grammar sampler as a constraint: characters, control tokens, the end, memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import RequestRefused
from engine.grammar import MANY, Alphabet, GrammarConstraint, Grammars, unfinished
from engine.model import Model, default_model_path
from tests.engine.answers import END, FIRST_BYTE, Writer, grammar_of
from tests.engine.tiny import VOCAB

STRING = grammar_of({"type": "string"})
OBJECT = grammar_of({"type": "object"})
EVERYTHING = np.arange(VOCAB)


def after(writer: Writer, grammar: str, raw: bytes) -> GrammarConstraint:
    constraint = writer.begin(grammar)
    for byte in raw:
        assert constraint.allowed(np.array([FIRST_BYTE + byte]))[0], raw
        constraint.accept(FIRST_BYTE + byte)
    return constraint


def next_bytes(constraint: GrammarConstraint) -> set[int]:
    allowed = constraint.allowed(np.arange(FIRST_BYTE, FIRST_BYTE + 256))
    return set(np.flatnonzero(allowed).tolist())


def test_the_end_may_come_only_where_the_answer_is_whole(writer: Writer) -> None:
    text = b'{"a":[1]}'
    for cut in range(len(text)):
        assert not after(writer, OBJECT, text[:cut]).allowed(np.array([END]))[0]
    whole = after(writer, OBJECT, text)
    assert np.flatnonzero(whole.allowed(EVERYTHING)).tolist() == [END]
    whole.accept(END)
    assert np.flatnonzero(whole.allowed(EVERYTHING)).tolist() == [END], "a draft may go on after the end"


def test_control_tokens_are_no_text(writer: Writer) -> None:
    """Their names would fit into a string, but they write nothing."""
    inside = after(writer, STRING, b'"')
    control = [token for token in range(FIRST_BYTE) if token != END]
    assert not inside.allowed(np.array(control)).any()
    assert writer.model.piece(1, special=True) == b"<s>"


def test_the_default_models_control_tokens_are_no_text() -> None:
    model = Model(default_model_path())
    constraint = Grammars(model).begin(STRING)
    assert constraint is not None
    for token in model.tokenize('"', add_bos=False, special=True):
        constraint.accept(int(token))
    (start,) = model.tokenize("<|im_start|>", add_bos=False, special=True)
    (word,) = model.tokenize("hello", add_bos=False, special=True)
    assert constraint.allowed(np.array([start, word])).tolist() == [False, True]


def test_a_nul_is_no_text(writer: Writer) -> None:
    assert 0 not in next_bytes(after(writer, STRING, b'"'))


def utf8_prefixes() -> Iterator[bytes]:
    """The beginnings of all characters beyond ASCII, by the definition."""
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x110000)):
        raw = chr(code).encode()
        yield from (raw[:n] for n in range(1, len(raw)))


@pytest.fixture(scope="module")
def prefixes() -> set[bytes]:
    return set(utf8_prefixes())


def test_bytes_are_taken_if_they_may_become_a_character(writer: Writer, prefixes: set[bytes]) -> None:
    """llama.cpp's own grammar takes surrogates, overlong forms and bytes above F4."""
    firsts = {byte for byte in next_bytes(after(writer, STRING, b'"')) if byte >= 0x80}
    assert firsts == {p[0] for p in prefixes if len(p) == 1}
    for first in sorted(firsts):
        seconds = next_bytes(after(writer, STRING, b'"' + bytes([first])))
        if first < 0xE0:
            assert seconds == set(range(0x80, 0xC0))
            continue
        assert seconds == {p[1] for p in prefixes if len(p) == 2 and p[0] == first}


def test_what_is_unfinished_is_the_beginning_of_a_character(prefixes: set[bytes]) -> None:
    for raw in prefixes:
        assert unfinished(b"a" + raw) == raw
    for raw in (b"\xed\xa0", b"\xff", b"\x80", b"\xc0", b"\xe0\x80", b"\xf4\x90", b"\xc3a", b"\xf5"):
        with pytest.raises(UnicodeDecodeError):
            unfinished(raw)
    assert unfinished("é".encode()) == unfinished(b"") == b""


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_text_may_be_written_byte_by_byte(writer: Writer, text: str) -> None:
    assert writer.takes(STRING, '"' + text.replace("\\", "").replace('"', "") + '"')


@pytest.mark.parametrize("raw", [b"", b'"', b'"ab', b'"a\xe2', b'"a\\', b'"a\\u00', b'"a"'])
def test_many_tokens_are_judged_like_each_alone(raw: bytes) -> None:
    """From so many on, those are left out whose first byte cannot come; on a vocabulary of longer tokens."""
    model = Model(default_model_path())
    constraint = Grammars(model).begin(STRING)
    assert constraint is not None
    singles = {model.piece(token): token for token in range(model.vocab_size)}
    for byte in raw:
        constraint.accept(singles[bytes([byte])])
    ids = np.random.default_rng(3).permutation(model.vocab_size)[: 8 * MANY]
    ids = np.concatenate((ids, [singles[b'"'], singles[b"n"], 2]))
    parts = [constraint.allowed(part) for part in np.array_split(ids, 20)]
    assert all(len(part) < MANY for part in parts)
    assert np.array_equal(constraint.allowed(ids), np.concatenate(parts))


def test_an_alphabet_knows_what_tokens_write(tiny_gguf: str) -> None:
    alphabet = Alphabet(Model(tiny_gguf))
    assert np.flatnonzero(alphabet.ends).tolist() == [END]
    assert not alphabet.whole[:FIRST_BYTE].any()
    assert alphabet.whole[FIRST_BYTE + ord("a")]
    assert set(alphabet.partial) == {FIRST_BYTE + byte for byte in range(0x80, 0x100)}
    assert alphabet.single[0] == -1, "a NUL is not written"
    assert alphabet.single[255] == FIRST_BYTE + 255


def test_a_grammar_that_llama_cpp_does_not_take_is_refused(tiny_gguf: str) -> None:
    grammars = Grammars(Model(tiny_gguf))
    for grammar in ("root ::= root", "root ::= a", "no grammar at all", "other ::= [a]", ""):
        with pytest.raises(RequestRefused, match=r"llama\.cpp") as refused:
            grammars.begin(grammar)
        assert (refused.value.param, refused.value.code) == ("response_format", "invalid_schema")


def test_the_sampler_is_freed_with_its_constraint(tiny_gguf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []
    monkeypatch.setattr("engine.grammar.llama_cpp.llama_sampler_free", freed.append)
    grammars = Grammars(Model(tiny_gguf))
    constraint = grammars.begin(STRING)
    gone = weakref.ref(constraint)  # type: ignore[arg-type]
    del constraint
    gc.collect()
    assert gone() is None
    assert len(freed) == 1
