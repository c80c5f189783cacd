"""GBNF, the notation of llama.cpp's grammars: what JSON is made of, and rules added to it."""

from __future__ import annotations

from itertools import groupby
from os.path import commonprefix

MAX_REPEATS = 2000  # of one thing; beyond that llama.cpp's parser refuses, or forgets the limit
ALL_REPEATS = 20_000  # counted repeats of one grammar; each is a rule of its own inside llama.cpp
DIGITS = 16  # of an integer, and of a fraction: a model must not write digits for ever

# Strict JSON: no raw control characters in a string, no lone surrogates, no number that overflows a double.
# At most one space between tokens, none around the whole: a model must not write spaces for ever either.
JSON = rf"""
space ::= " "?
comma ::= "," space
hex ::= [0-9a-fA-F]
pair ::= [89abAB] hex hex "\\u" [dD] [c-fC-F] hex hex
unit ::= [0-9abcefABCEF] hex hex hex | [dD] ([0-7] hex hex | pair)
char ::= [^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" unit)
string ::= "\"" char* "\""
natural ::= "0" | [1-9] [0-9]{{0,{DIGITS - 1}}}
integer ::= "-"? natural
fraction ::= "." [0-9]{{1,{DIGITS}}}
number ::= integer fraction? ([eE] [-+]? [0-9]{{1,2}})?
boolean ::= "true" | "false"
null ::= "null"
array ::= "[" space (value (comma value)* space)? "]"
member ::= string ":" space value
object ::= "{{" space (member (comma member)* space)? "}}"
value ::= object | array | string | number | boolean | null
"""


class TooLarge(ValueError):
    """The grammar repeats more than llama.cpp takes."""


class Rules:
    """Rules on top of those of JSON."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # body -> name
        self._lines: list[str] = []
        self._repeats = 0

    def add(self, body: str) -> str:
        """The name of a rule with this body."""
        if body not in self._names:
            self._names[body] = f"r{len(self._names)}"
            self.define(self._names[body], body)
        return self._names[body]

    def define(self, name: str, body: str) -> None:
        self._lines.append(f"{name} ::= {body}")

    def repeat(self, name: str, least: int, most: int | None) -> str:
        """So many times a rule, given by its name."""
        if (most or least) > MAX_REPEATS:
            raise TooLarge(f"more than {MAX_REPEATS} repeats")
        self._repeats += most or least
        if self._repeats > ALL_REPEATS:
            raise TooLarge(f"more than {ALL_REPEATS} repeats in all")
        return f"{name}{{{least},{'' if most is None else most}}}"

    def text(self, root: str) -> str:
        return "\n".join((f"root ::= {root}", *self._lines)) + JSON


def literal(text: str) -> str:
    """Exactly this text."""
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    return c if c.isprintable() else f"\\U{ord(c):08X}"


def any_of(texts: list[str]) -> str:
    """One of these texts, sorted and each once; those that begin alike share that part.

    So few ways are open at a time: each that is costs time at every token.
    """
    if len(texts) == 1:
        return literal(texts[0])
    start = commonprefix(texts)  # noqa: RUF071
    rest = [text[len(start) :] for text in texts]
    ways = [any_of(list(group)) for _, group in groupby(rest, key=lambda text: text[:1])]
    return f"{literal(start)} ({' | '.join(ways)})" if start else f"({' | '.join(ways)})"


def integers(low: int | None, high: int | None) -> str | None:
    """An integer of this range; None when there is none."""
    low, high = _clamped(low, high)
    ways = [f'"-" ({way})' for way in _naturals(max(1, -high), -low)]
    return " | ".join(ways + _naturals(max(0, low), high)) or None


def numbers(low: int | None, high: int | None) -> str | None:
    """A number of this range, its ends included, without an exponent; None when there is none."""
    low, high = _clamped(low, high)
    if low > high:
        return None
    ways = [f'"-" ({way}) fraction?' for way in _naturals(max(0, -high), -low - 1)]
    ways += [f"({way}) fraction?" for way in _naturals(max(0, low), high - 1)]
    return " | ".join([*ways, *(literal(str(end)) for end in {low, high})])


def _clamped(low: int | None, high: int | None) -> tuple[int, int]:
    largest = 10**DIGITS - 1
    return (-largest if low is None else max(low, -largest)), (
        largest if high is None else min(high, largest)
    )


def _naturals(low: int, high: int) -> list[str]:
    """Ways to write a number of this range, one for each count of digits."""
    ways = []
    for digits in range(len(str(low)), len(str(max(high, 0))) + 1):
        first, last = max(low, 10 ** (digits - 1) if digits > 1 else 0), min(high, 10**digits - 1)
        if first <= last:
            ways.append(_between(str(first), str(last)))
    return ways


def _between(low: str, high: str) -> str:
    """The digit strings from low to high, both of the same length."""
    if low == high:
        return literal(low) if low else ""
    if set(low) == {"0"} and set(high) == {"9"}:
        return f"[0-9]{{{len(low)}}}"
    if low[0] == high[0]:
        return f"{literal(low[0])} ({_between(low[1:], high[1:])})"
    first, last = int(low[0]), int(high[0])
    ways = []
    rest = len(low) - 1
    if low[1:].strip("0"):
        ways.append(f"{literal(low[0])} ({_between(low[1:], '9' * rest)})")
        first += 1
    if high[1:].strip("9"):
        ways.append(f"{literal(high[0])} ({_between('0' * rest, high[1:])})")
        last -= 1
    if first <= last:
        ways.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return " | ".join(ways)
