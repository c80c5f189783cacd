r"""Regular expressions of JSON schemas as GBNF: over the text of a JSON string, its escapes included.

What validators read differently is narrowed to what all of them match: `\d` and `\w` are ASCII, `.` is no
line end. What needs more than a grammar (lookaround, back references, word borders) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from engine.gbnf import Rules, literal

Ranges = list[tuple[int, int]]  # of code points, ends included, rising and apart

MAX_PLACES = (
    1000  # in a pattern, each repeat counted: so many may be open at once, and cost 10 ms a character
)
LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
CONTROLS = (0, 0x1F)
DIGIT: Ranges = [(0x30, 0x39)]
WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
SPACE: Ranges = [(0x09, 0x0D), (0x20, 0x20)]
BEYOND_ASCII: Ranges = [(0x80, LAST)]
WIDE_SPACE: Ranges = [  # of Python or of JavaScript
    *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
]
LINE_ENDS: Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
# What every validator takes for one of the class, and what any does
CLASSES = {"d": (DIGIT, DIGIT + BEYOND_ASCII), "w": (WORD, WORD + BEYOND_ASCII), "s": (SPACE, WIDE_SPACE)}
CONTROL_ESCAPES = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D, "0": 0x00}
QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class PatternRefused(ValueError):
    """The pattern is not a regular expression, or not one that a grammar can hold."""


def pattern(regex: str, rules: Rules) -> str:
    """GBNF of what stands between the quotes of a JSON string that matches somewhere."""
    return _Parser(regex, rules).whole()


class _Part(NamedTuple):
    """GBNF of a part of a pattern, whether it may be empty, and its characters with all their repeats."""

    body: str
    empty: bool
    places: int


class _Parser:
    def __init__(self, regex: str, rules: Rules) -> None:
        self._regex = regex
        self._rules = rules
        self._at = 0

    def whole(self) -> str:
        part = self._alternatives(top=True)
        if self._at < len(self._regex):
            raise PatternRefused('")" without "("')
        if part.places > MAX_PLACES:
            raise PatternRefused(f"it is longer than {MAX_PLACES} characters with all its repeats")
        return part.body

    @property
    def _next(self) -> str:
        return self._regex[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if not self._regex.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _one(self) -> str:
        if not self._next:
            raise PatternRefused("it ends too early")
        self._at += 1
        return self._regex[self._at - 1]

    def _alternatives(self, top: bool = False) -> _Part:
        """At the top, a branch without an anchor matches anywhere."""
        ways = [self._branch(top)]
        while self._take("|"):
            ways.append(self._branch(top))
        body = " | ".join(way.body for way in ways)
        return _Part(body, any(way.empty for way in ways), sum(way.places for way in ways))

    def _branch(self, top: bool) -> _Part:
        begins = top and self._take("^")
        ends = False
        items = []
        while self._next not in ("", "|", ")"):
            if top and self._next == "$" and self._regex[self._at + 1 : self._at + 2] in ("", "|"):
                ends = self._take("$")
                break
            items.append(self._item())
        body = [item.body for item in items]
        if top:
            body = [*([] if begins else ["char*"]), *body, *([] if ends else ["char*"])]
        places = sum(item.places for item in items)
        return _Part(" ".join(body) or '""', all(item.empty for item in items), places)

    def _item(self) -> _Part:
        atom = self._atom()
        least, most = self._quantifier()
        if (least, most) == (1, 1):
            return atom
        if atom.empty:
            raise PatternRefused("it repeats what may be empty")
        if most == 0:
            return _Part('""', True, 0)
        name = self._rules.add(atom.body)
        if most is None and least < 2:
            return _Part(name + "*+"[least], not least, atom.places)
        body = self._rules.repeat(name, least, most)
        return _Part(body, not least, atom.places * (most or least))

    def _quantifier(self) -> tuple[int, int | None]:
        least: int
        most: int | None
        if self._next and self._next in QUANTIFIERS:
            least, most = QUANTIFIERS[self._one()]
        elif self._take("{"):
            first, comma, last = self._until("}").partition(",")
            if not _is_count(first) or not (_is_count(last) or not last):
                raise PatternRefused("a count in braces that is none")
            least = int(first)
            most = int(last) if last else None if comma else least
            if most is not None and most < least:
                raise PatternRefused("a count in braces that falls")
        else:
            return 1, 1
        self._take("?")  # lazy or not, the same texts match
        if self._next and self._next in "*+?{":
            raise PatternRefused("nothing to repeat")
        return least, most

    def _until(self, end: str) -> str:
        text = ""
        while (c := self._one()) != end:
            text += c
        return text

    def _atom(self) -> _Part:
        c = self._one()
        if c == "(":
            return self._group()
        if c == "[":
            body = self._class()
        elif c == ".":
            body = _characters(_without([(0, LAST)], LINE_ENDS))
        elif c == "\\":
            body = _characters(self._escape(wide=False))
        elif c in "^$":
            raise PatternRefused(f'"{c}" elsewhere than at its ends')
        elif c in "*+?{}":
            raise PatternRefused("nothing to repeat")
        else:
            body = _characters([(ord(c), ord(c))])
        return _Part(body, False, 1)

    def _group(self) -> _Part:
        if self._take("?") and not self._take(":"):
            raise PatternRefused('a group that begins with "(?"')
        inner = self._alternatives()
        if not self._take(")"):
            raise PatternRefused('"(" without ")"')
        return inner._replace(body=f"({inner.body})")

    def _class(self) -> str:
        negated = self._take("^")
        members: Ranges = []
        while not self._take("]"):
            first = self._member(negated)
            if self._next == "-" and self._regex[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._member(negated)
                if not _is_single(first) or not _is_single(last) or last[0][0] < first[0][0]:
                    raise PatternRefused("a range in brackets that is none")
                first = [(first[0][0], last[0][0])]
            members += first
        return _characters(_without([(0, LAST)], members) if negated else members)

    def _member(self, negated: bool) -> Ranges:
        c = self._one()
        return self._escape(wide=negated) if c == "\\" else [(ord(c), ord(c))]

    def _escape(self, wide: bool) -> Ranges:
        """wide: all that any validator takes for one of the class."""
        c = self._one()
        if c in CLASSES:
            return CLASSES[c][wide]
        if c.lower() in CLASSES:
            return _without([(0, LAST)], CLASSES[c.lower()][not wide])
        if c in CONTROL_ESCAPES:
            code = CONTROL_ESCAPES[c]
        elif c in "xu":
            digits = "".join(self._one() for _ in range(2 if c == "x" else 4))
            try:
                code = int(digits, 16)
            except ValueError:
                raise PatternRefused(f'"\\{c}" without its digits') from None
        elif c.isalnum():
            raise PatternRefused(f'"\\{c}"')
        else:
            code = ord(c)
        return [(code, code)]


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _without(ranges: Ranges, taken: Iterable[tuple[int, int]]) -> Ranges:
    for low, high in taken:
        ranges = [
            part
            for first, last in ranges
            for part in ((first, min(last, low - 1)), (max(first, high + 1), last))
            if part[0] <= part[1]
        ]
    return ranges


def _characters(ranges: Ranges) -> str:
    """One of these characters as a JSON string writes it; control characters where nothing else is left."""
    plain = _without(ranges, [CONTROLS, SURROGATES, (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F)])
    held = [c for c in (*range(0x20), 0x22, 0x5C) if any(low <= c <= high for low, high in ranges)]
    escaped = [c for c in held if c > 0x1F] or ([] if plain else held)
    if plain and _is_single(plain):
        ways = [literal(chr(plain[0][0]))]
    else:
        ways = [f"[{''.join(f'{_code(low)}-{_code(high)}' for low, high in plain)}]"] if plain else []
    ways += [literal(json.dumps(chr(c))[1:-1]) for c in escaped]
    if not ways:
        raise PatternRefused("a class of no character")
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def _code(c: int) -> str:
    return f"\\U{c:08X}"
