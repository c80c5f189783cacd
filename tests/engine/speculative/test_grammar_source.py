"""Drafts of what a grammar forces: which tokens, how sure of them, and what is learned from the answers."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from engine import Request, SamplingParams
from engine.core.sequence import SequenceState
from engine.core.token_tree import ROOT
from engine.speculative.grammar_source import INNER, LAST, LONGEST, OPEN, PRIOR, REMEMBERED, GrammarSource
from tests.engine.helpers.answers import FIRST_BYTE, Writer, grammar_of

PET = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "kind": {"enum": ["hen", "hare"]}},
    "required": ["a", "kind"],
}


def sequence(writer: Writer, schema: object = PET, **sampling: object) -> SequenceState:
    grammar = grammar_of(schema) if schema else None
    params = SamplingParams(**{"max_tokens": 2000, **sampling})  # type: ignore[arg-type]
    request = Request(id="-", prompt="-", sampling=params)
    return SequenceState(
        request, np.array([1], dtype=np.int32), 0.0, writer.begin(grammar) if grammar else None
    )


def emit(s: SequenceState, *tokens: int) -> None:
    assert s.constraint
    for token in tokens:
        assert s.constraint.allowed()[token]
        s.constraint.accept(token)
        s.tokens[s.length] = token
        s.length += 1


def spelled(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


def drafted(source: GrammarSource, s: SequenceState, limit: int = 64) -> list[int]:
    [tree] = source.draft([s], limit)
    assert [node.parent for node in tree] == [*range(ROOT, len(tree) - 1)]
    assert [node.depth for node in tree] == [*range(1, len(tree) + 1)]
    assert all(node.source == "grammar" for node in tree)
    path_probabilities = [node.path_probability for node in tree]
    assert path_probabilities == sorted(path_probabilities, reverse=True)
    assert all(0 <= chance <= 1 for chance in path_probabilities)
    assert len(tree) <= limit
    return [node.token for node in tree]


def text_of(writer: Writer, tokens: list[int]) -> str:
    return b"".join(writer.model.piece(token) for token in tokens).decode()


def test_what_is_forced_is_drafted_up_to_the_next_choice(writer: Writer) -> None:
    source, s = GrammarSource(), sequence(writer)
    assert text_of(writer, drafted(source, s)) == '{"a": "'
    emit(s, *spelled('{"a": "'))
    assert drafted(source, s) == [], "any string"
    emit(s, *spelled('x"'))
    assert text_of(writer, drafted(source, s)) == ', "kind": "h'
    emit(s, *spelled(', "kind": "ha'))
    assert text_of(writer, drafted(source, s)) == 're"}'
    emit(s, *spelled('re"}'))
    assert drafted(source, s) == []


def test_the_longest_tokens_are_guessed_first(writer: Writer) -> None:
    s = sequence(writer, {"const": "abc"})
    tokens = drafted(GrammarSource(), s)
    assert [writer.model.piece(token) for token in tokens] == [b'"', b"ab", b"c", b'"']


def test_how_the_model_wrote_it_the_last_time_is_guessed_the_next_time(writer: Writer) -> None:
    source, schema = GrammarSource(), {"const": "abc"}
    first = sequence(writer, schema)
    guess = drafted(source, first)
    written = spelled('"abc"')
    assert guess != written
    for token in written:
        emit(first, token)
        drafted(source, first)
    assert drafted(source, sequence(writer, schema)) == written


def test_a_token_that_goes_on_beyond_what_is_forced_is_not_guessed(writer: Writer) -> None:
    schema, source = {"enum": ["abc", "abd"]}, GrammarSource()
    first = sequence(writer, schema)
    assert text_of(writer, drafted(source, first)) == '"ab'
    pieces = {writer.model.piece(token): token for token in range(writer.model.vocab_size)}
    emit(first, *spelled('"a'), pieces[b"bc"])
    drafted(source, first)
    assert drafted(source, sequence(writer, schema)) == spelled('"a')


def test_never_more_than_asked_for_nor_than_may_still_come(writer: Writer) -> None:
    long = {"const": "x" * 2 * LONGEST}
    assert len(drafted(GrammarSource(), sequence(writer, long), 3)) == 3
    assert len(drafted(GrammarSource(), sequence(writer, long), 1000)) == LONGEST
    assert len(drafted(GrammarSource(), sequence(writer, long, max_tokens=4), 64)) == 3
    assert drafted(GrammarSource(), sequence(writer, long), 0) == []
    source = GrammarSource()
    source.min_path_probability = 0.5
    assert 3 < len(drafted(source, sequence(writer, long), 1000)) < LONGEST


def test_a_text_that_is_cut_inside_of_a_character_is_drafted_up_to_it(writer: Writer) -> None:
    source, s = GrammarSource(), sequence(writer, {"enum": ["né", "nè"]})
    assert text_of(writer, drafted(source, s)) == '"n'
    emit(s, *spelled('"n'), FIRST_BYTE + "é".encode()[0])
    assert drafted(source, s) == []


def test_the_end_of_a_text_is_less_sure_where_a_token_may_go_on_beyond_it(writer: Writer) -> None:
    [open_end] = GrammarSource().draft([sequence(writer, {"enum": ["x1", "x2"]})], 9)
    assert [n.path_probability for n in open_end] == pytest.approx([PRIOR[INNER], PRIOR[INNER] * PRIOR[OPEN]])
    [quote] = GrammarSource().draft([sequence(writer, {"const": ""})], 9)
    assert quote[-1].path_probability == pytest.approx(PRIOR[INNER] * PRIOR[LAST])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_probabilities_follow_what_is_emitted(writer: Writer, temperature: float) -> None:
    """Of texts never seen before, which are always written byte by byte, so that pairs are wrong."""
    source = GrammarSource()

    def surety(text: str, **sampling: object) -> float:
        [tree] = source.draft([sequence(writer, {"const": text}, **sampling)], 9)
        return tree[0].path_probability

    other = 0.7 - temperature
    before, of_other = surety("aa", temperature=temperature), surety("aa", temperature=other)
    for i in range(60):
        s = sequence(writer, {"const": f"ab{i}"}, temperature=temperature)
        drafted(source, s)
        for token in spelled(f'"ab{i}"'):
            emit(s, token)
            drafted(source, s)
    assert surety("aa", temperature=temperature) < before - 0.1
    assert surety("aa", temperature=other) == of_other


def test_only_requests_with_a_grammar_are_served(writer: Writer) -> None:
    free, held = sequence(writer, None), sequence(writer)
    source = GrammarSource()
    assert [source.serves(free), source.serves(held)] == [False, True]
    assert source.draft([free], 9) == [[]]


@pytest.mark.slow
def test_so_many_texts_are_remembered(writer: Writer) -> None:
    source = GrammarSource()
    for i in range(REMEMBERED + 5):
        s = sequence(writer, {"const": i})
        drafted(source, s)
        emit(s, *spelled(str(i)))
        drafted(source, s)
    assert len(source._spellings) == REMEMBERED
    assert b"4" not in source._spellings
    assert b"5" in source._spellings


def test_an_ended_sequence_is_forgotten(writer: Writer) -> None:
    source, s = GrammarSource(), sequence(writer)
    drafted(source, s)
    gone = weakref.ref(s)
    del s
    gc.collect()
    assert gone() is None
