"""A line of a batch file as bytes: packed when the file is read, unpacked where it is run.

NUMBER \\t MAX_TOKENS \\t GROUP \\t MODEL \\t CUSTOM_ID \\t REQUEST \\n

The last three are JSON, in which no tab and no end of a line stands for itself. In between it is copied as it
is; tasks/store/lua/lib/windows.lua reads the other fields.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

PARTS = 6


@dataclass(frozen=True, slots=True)
class Line:
    """A valid line, ready to be sent."""

    number: int  # in the file, from 1
    custom_id: str
    model: str
    request: str  # JSON
    max_tokens: int  # of the request
    prefix: str | None = None  # by which a file's lines are grouped; it is not packed

    def packed(self, group: int) -> bytes:
        """group: a number that lines with the same prefix have in common."""
        names = (json.dumps(name, ensure_ascii=False) for name in (self.model, self.custom_id))
        return (
            "\t".join((f"{self.number}\t{self.max_tokens}\t{group}", *names, self.request)).encode() + b"\n"
        )


class Head(NamedTuple):
    """What is known of a packed line without its request."""

    number: int
    max_tokens: int
    group: int
    model: str


class Parts(NamedTuple):
    """A line as a worker runs it. custom_id, request: as JSON."""

    number: int
    max_tokens: int
    custom_id: str
    request: str


def head(packed: bytes) -> Head:
    number, max_tokens, group, model, _ = packed.split(b"\t", 4)
    return Head(int(number), int(max_tokens), int(group), json.loads(model))


def parts(packed: str) -> Parts:
    """packed: with or without its end."""
    number, max_tokens, _, _, custom_id, request = packed.split("\t", PARTS - 1)
    return Parts(int(number), int(max_tokens), custom_id, request)


def unpacked(packed: bytes) -> Line:
    number, max_tokens, custom_id, request = parts(packed.decode())
    return Line(number, json.loads(custom_id), head(packed).model, request.removesuffix("\n"), max_tokens)
